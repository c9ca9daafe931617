"""The pages of the dashboard: static files, which the HTTP API serves."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "static"
"""The folder of the page: ``index.html``, and what it loads from ``/assets/`` after the login."""
LOGIN_PAGE = Path(__file__).parent / "login.html"
"""What a browser that has not logged in is shown: one file, which loads nothing."""
