from __future__ import annotations

import io

from rich.console import Console

from millstream.cli.live_view import view
from tests.api.stand_in import StandInRun, snapshot


def test_the_live_view_shows_rates_nodes_jobs_and_events() -> None:
    run = StandInRun()
    run.add_event("scale", "from 1 to 2 nodes")
    printed = io.StringIO()

    Console(file=printed, width=120).print(view(snapshot(), run.log))

    text = printed.getvalue()
    assert "1,000 rows/s" in text and "p99 500 ms" in text
    assert "00000000" in text and "50%" in text
    assert "counts" in text and "hot keys: counts/the 10%" in text
    assert "from 1 to 2 nodes" in text
