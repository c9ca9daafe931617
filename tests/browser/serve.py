"""The page with a simulated run, for working on it: ``python -m tests.browser.serve``."""

from __future__ import annotations

import argparse
import random
import time

from millstream.api.server import ApiServer
from millstream.api.tokens import TokenBook
from tests.browser.simulated_run import SimulatedRun

_STORY = {12: "fail", 17: "replace", 30: "decide", 45: "rebalance"}
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
    for _ in range(options.past):
        tell(run)
    tokens = TokenBook()
    server = ApiServer(run, tokens, host="127.0.0.1", port=options.port, version="simulated")
    server.start()
    print(f"{server.url}/login?code={tokens.login_code('operator').text}", flush=True)
    while True:
        time.sleep(1)
        tell(run)


def tell(run: SimulatedRun) -> None:
    """An epoch, and what happens in it."""
    run.step()
    match _STORY.get(run.epoch % _CHAPTER):
        case "fail":
            run.fail(random.Random(run.epoch).choice([node.id for node in run.snapshot().nodes]))
        case "replace":
            run.replace_lost()
        case "decide":
            run.decide()
        case "rebalance":
            run.rebalance(dry_run=False)


if __name__ == "__main__":
    main()
