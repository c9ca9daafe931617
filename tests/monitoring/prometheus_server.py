"""A real Prometheus, on a free port of the loopback interface, with a folder of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from millstream.wire.run_registry import ApiAccess
from tests.contract.backends import server

_START = 30.0


class Prometheus:
    """A server that scrapes one run, with a viewer's token, and evaluates rules."""

    def __init__(self, folder: Path, access: ApiAccess, rules: str) -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{_free_port()}"
        token, alerts = folder / "token", folder / "alerts.yml"
        token.write_text(access.viewer)
        alerts.write_text(rules)
        # JSON is YAML, too.
        self._config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(alerts)],
            "scrape_configs": [
                {
                    "job_name": "millstream",
                    "authorization": {"credentials_file": str(token)},
                    "static_configs": [{"targets": [urlsplit(access.url).netloc]}],
                }
            ],
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it answers."""
        config, log = self._folder / "prometheus.yml", self._folder / "log"
        config.write_text(json.dumps(self._config))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    server("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={urlsplit(self._url).netloc}",
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + _START
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)

    def kill(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def series(self, query: str) -> list[dict[str, str]]:
        """The labels of the series that a query finds now; raises if it does not parse."""
        found = self._get("query", query=query)["result"]
        return [series["metric"] for series in found]

    def has_data(self, query: str) -> bool:
        """Whether a query finds anything now."""
        return bool(self.series(query))

    def label_values(self, label: str, metric: str) -> list[str]:
        """The values of a label, as a variable of Grafana gets them."""
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": metric})
        return values

    def rules(self) -> dict[str, str]:
        """The names of the rules, each with its health."""
        groups = self._get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def firing(self) -> dict[str, dict[str, str]]:
        """The alerts that fire, with their labels."""
        alerts = self._get("alerts")["alerts"]
        return {
            alert["labels"]["alertname"]: alert["labels"]
            for alert in alerts
            if alert["state"] == "firing"
        }

    def _get(self, path: str, **query: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return json.load(answer)["data"]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
