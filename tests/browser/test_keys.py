"""The playground with a server that requires an API key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.key_file import KeyEntry, hash_of, new_key
from orchestrator.launcher import Stack
from tests.browser.conftest import START_TIMEOUT_S, OpenPage
from tests.support.forked import ForkedRole

KEY = new_key()


@pytest.fixture
def server_with_key(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """Address of another orchestrator, which requires a key, on the stack's services."""
    keys, address = tmp_path / "keys.toml", tmp_path / "http.address"
    keys.write_text(KeyEntry(name="visitor", sha256=hash_of(KEY), tenant="").toml())
    flags = [
        *("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"),
        *("--http-address-file", str(address), "--api-keys", str(keys)),
        *("--verifiers", stack.processes["verifier"].address),
        *("--drafters", stack.processes["drafter"].address),
    ]
    process = ForkedRole("orchestrator", flags, tmp_path)
    process.start()
    try:
        process.wait_until_ready(time.monotonic() + START_TIMEOUT_S)
        yield f"http://{address.read_text()}"
    finally:
        process.stop()


def test_page_asks_for_the_key_and_stores_it_nowhere(
    open_page: OpenPage, server_with_key: str
) -> None:
    playground = open_page(server_with_key, greeting="key")
    playground.at("#key").wait_for()  # visible
    playground.at("#run").click()
    playground.wait("Failed")
    assert "key" in playground.text("#error")
    assert playground.page.evaluate("document.activeElement.id") == "key"
    playground.page.keyboard.type(KEY)
    playground.page.keyboard.press("Tab")
    playground.wait_for("#models", "target")
    playground.run(max_tokens=4, seed=1)
    assert playground.text("#answer")
    storage = "JSON.stringify([localStorage, sessionStorage, document.cookie])"
    assert KEY not in playground.page.evaluate(storage)
    playground.page.reload()
    assert playground.at("#key").input_value() == ""


@pytest.mark.parametrize("key", ["schl\u00fcssel", "key\u2013with-a-dash", "two words"])
def test_key_with_unsendable_characters_is_reported_as_refused(
    open_page: OpenPage, server_with_key: str, key: str
) -> None:
    """Browsers cannot send every character. That used to be reported as an unreachable server."""
    playground = open_page(server_with_key, greeting="key")
    playground.at("#key").fill(key)
    playground.page.keyboard.press("Tab")
    playground.wait_for("#models", "character that no key has")
    playground.at("#run").click()
    playground.wait("Failed")
    assert "character that no key has" in playground.text("#error")
    assert playground.page.evaluate("document.activeElement.id") == "key"
