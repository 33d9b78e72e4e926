"""A Chromium for the tests: the system's own, or the one that Playwright installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No requests but the page's own; works in containers and without a GPU.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
START_TIMEOUT_MS = 120_000


class NoBrowser(Exception):
    """No browser is installed."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser. Raises NoBrowser if none is installed."""
    with sync_playwright() as playwright:
        executable = next((path for name in NAMES if (path := shutil.which(name))), None)
        program = executable or playwright.chromium.executable_path
        if not Path(program).exists():
            raise NoBrowser(f"needs a browser: none of {', '.join(NAMES)} is installed")
        browser = playwright.chromium.launch(
            executable_path=program, args=FLAGS, timeout=START_TIMEOUT_MS
        )
        try:
            yield browser
        finally:
            browser.close()
