"""Fixtures of `make test-browser`: the playground in a real browser, over all roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from tests.support.forked import ForkedStack
from tests.support.opt_in import only_on_request, tests_below

if TYPE_CHECKING:  # not imported when these tests are skipped
    from playwright.sync_api import Browser

    from tests.browser.playground import Playground

WANTED = "TEST_BROWSER"
TIMEOUT_S = 900
START_TIMEOUT_S = 600
# Makes drafts pay, so that there are some to show; with the bundled pair they rarely do.
INFLATE = "60M"
SIZE = {"width": 1280, "height": 900}

OpenPage = Callable[..., "Playground"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips these tests unless they are requested: not every machine has a browser."""
    chosen = tests_below(Path(__file__).parent, items)
    reason = "needs Chromium: run `make test-browser`"
    only_on_request(chosen, variable=WANTED, timeout_s=TIMEOUT_S, reason=reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser; without one all tests here are skipped, with the reason."""
    from tests.browser.chromium import NoBrowser, chromium

    try:
        with chromium() as running:
            yield running
    except NoBrowser as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def stack(browser: Browser) -> Iterator[Stack]:
    """All three roles, in float32: the same tokens whatever is drafted."""
    config = StackConfig(
        port=0, http_port=0, drafter_port=0, verifier_port=0, dtype="float32", inflate=INFLATE,
        start_timeout_s=START_TIMEOUT_S,
    )  # fmt: skip
    with ForkedStack(config) as running:
        yield running


@pytest.fixture(scope="session")
def base(stack: Stack) -> str:
    """Address of the server."""
    return f"http://{stack.http_address}"


@pytest.fixture
def http(base: str) -> Iterator[httpx.Client]:
    """A plain HTTP client of the server."""
    with httpx.Client(base_url=base, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def open_page(browser: Browser, base: str) -> Iterator[OpenPage]:
    """Opens the playground as a new visitor; keywords are those of a Playwright context."""
    from tests.browser.playground import Playground

    contexts = []

    def opened(address: str = base, greeting: str = "target", **visitor: Any) -> Playground:
        context = browser.new_context(**{"viewport": SIZE, **visitor})
        contexts.append(context)
        return Playground(context.new_page(), address, greeting)

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def playground(open_page: OpenPage) -> Iterator[Playground]:
    """The opened page; at the end it must have reported no problem."""
    page = open_page()
    yield page
    assert page.problems == []
