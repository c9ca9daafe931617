"""The page of the dashboard: static files, which the HTTP API serves to browsers that logged in."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "static"
"""The folder of the page: ``index.html``, and what it loads from ``/assets/``."""
