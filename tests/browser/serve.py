"""The page with a simulated run, for working on it: ``python -m tests.browser.serve``."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.api.contract import Right
from millstream.api.server import ApiServer
from millstream.api.tokens import TokenBook
from tests.browser.simulated_run import SimulatedRun

_STORY = {12: "fail", 17: "replace", 30: "decide", 40: "outcome", 45: "drain", 52: "rebalance"}
_CHAPTER = 60


def main() -> None:
    """Serve until interrupted; prints a link that logs in, once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--zones", type=int, default=4)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--past", type=int, default=240, help="epochs before the first one shown")
    options = parser.parse_args()
    run = SimulatedRun(options.nodes, zones=options.zones, time=time.time() - options.past)
    past(run, options.past)
    with serving(run, right="operator", port=options.port) as link:
        print(link, flush=True)
        while True:
            time.sleep(1)
            past(run, 1)


@contextmanager
def serving(run: SimulatedRun, *, right: Right, port: int = 0) -> Iterator[str]:
    """Serve a run; the link logs in, once."""
    tokens = TokenBook()
    server = ApiServer(run, tokens, host="127.0.0.1", port=port, version="simulated")
    server.start()
    try:
        yield f"{server.url}/login?code={tokens.login_code(right).text}"
    finally:
        server.close()


def past(run: SimulatedRun, epochs: int) -> None:
    """Epochs, and what happens in them."""
    for _ in range(epochs):
        run.step()
        match _STORY.get(run.epoch % _CHAPTER):
            case "fail":
                nodes = [node.id for node in run.snapshot().nodes]
                run.fail(random.Random(run.epoch).choice(nodes))
            case "replace":
                run.replace_lost()
            case "decide":
                run.decide()
            case "outcome":
                run.report_outcome()
            case "rebalance":
                run.rebalance(dry_run=False)
            case "drain":
                run.drain(run.snapshot().nodes[0].id, dry_run=False)


if __name__ == "__main__":
    main()
