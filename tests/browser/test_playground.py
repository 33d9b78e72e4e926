"""What the page does: it streams, draws trees, stops, compares and reports errors."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from orchestrator.launcher import Stack
from tests.browser.conftest import OpenPage
from tests.support.sessions import open_sessions, wait_until_free

if TYPE_CHECKING:
    from tests.browser.playground import Playground

# Repetitive text is drafted from itself, and much of it is accepted.
PROMPT = "def first(self):\n    return self.first\n\n\n" * 3
RUN = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0.5, "seed": 3}


def test_page_loads_only_from_its_own_server(playground: Playground, base: str) -> None:
    assert {urlsplit(url).netloc for url in playground.requests} == {urlsplit(base).netloc}
    assert playground.page.url == f"{base}/playground/"
    names = playground.at("#strategy option").all_text_contents()
    assert "autoregressive" in names and playground.at("#strategy").input_value() == "fused"


def test_page_shows_the_answer_of_the_api(playground: Playground, http: httpx.Client) -> None:
    playground.run(**RUN)
    answer = http.post("/v1/completions", json=RUN).json()
    assert playground.text("#answer") == answer["choices"][0]["text"]
    assert playground.at("#answer .round").count() > 1
    sources = playground.at("#answer .token").evaluate_all("all => all.map(t => t.dataset.source)")
    assert len(sources) == answer["usage"]["completion_tokens"] == int(playground.text("#count"))
    assert "target" in sources and len(set(sources)) > 1
    counts = playground.at("#legend .count").all_text_contents()
    assert sum(map(int, counts)) == len(sources)
    styles = {playground.underline(source) for source in set(sources)}
    assert len(styles) == len(set(sources))  # they differ without colour too


def test_page_draws_the_tree_of_every_round(playground: Playground) -> None:
    playground.run(**RUN)
    rounds = int(playground.at("#round").get_attribute("max") or 0)
    accepted = drafted = 0
    for number in range(1, rounds + 1):
        playground.at("#round").fill(str(number))
        nodes = playground.at("#tree .node.accepted").count()
        bonus = playground.at("#tree .node.bonus").count()
        assert playground.at("#answer .round.current .token").count() == nodes + bonus
        accepted += nodes
        drafted += nodes + playground.at("#tree .node.rejected").count()
    assert accepted and playground.text("#acceptance") == f"{round(100 * accepted / drafted)} %"
    assert playground.text("#per-round") == f"{(RUN['max_tokens'] - 1) / rounds:.2f}"  # type: ignore[operator]


def test_page_shows_why_a_draft_ended(playground: Playground) -> None:
    playground.run(**RUN)
    texts = []
    for number in range(1, int(playground.at("#round").get_attribute("max") or 0) + 1):
        playground.at("#round").fill(str(number))
        texts.append(playground.text("#about-tree"))
    assert any("The draft ended because" in words for words in texts)
    label = playground.at("#tree svg").get_attribute("aria-label") or ""
    assert "Draft tree of round" in label


def test_stop_button_frees_the_session(playground: Playground, stack: Stack) -> None:
    # token by token: with drafts it ends within a second, which opening a channel may take
    playground.fill(**{**RUN, "max_tokens": 1500, "strategy": "autoregressive"})
    playground.at("#prompt").focus()
    playground.page.keyboard.press("Control+Enter")
    playground.at("#answer .round").nth(1).wait_for()
    assert open_sessions(stack) == 1
    playground.page.keyboard.press("Escape")
    playground.wait("Stopped after")
    wait_until_free(stack)
    assert playground.text("#answer")
    playground.run(**RUN)
    assert int(playground.text("#count")) == RUN["max_tokens"]


def test_comparison_with_plain_decoding(playground: Playground) -> None:
    playground.fill(**RUN)
    playground.at("#compare").click()
    playground.wait()
    assert playground.text("#verdict") == f"✓ Identical: all {RUN['max_tokens']} tokens"
    assert playground.text("#plain") == playground.text("#answer")
    for name in ("#drafted-speed", "#plain-speed"):
        assert float(playground.text(name).removesuffix(" tokens/s")) > 0
    assert playground.text("#ratio").endswith("×")
    drafted = playground.at("#plain .token:not([data-source=target])")
    assert drafted.count() == 0


def test_page_shows_error_messages(playground: Playground) -> None:
    playground.fill(**{**RUN, "prompt": "word " * 6000})
    playground.at("#run").click()
    playground.wait("Failed")
    assert "prompt is too long: 12000 tokens" in playground.text("#error")
    playground.run(**RUN)
    assert not playground.at("#error").is_visible()
    playground.problems.clear()  # the browser itself reports every status 400


def test_page_reports_an_unreachable_server(open_page: OpenPage) -> None:
    playground = open_page()
    playground.page.context.set_offline(True)
    playground.at("#run").click()
    playground.wait("Failed")
    assert "cannot be reached" in playground.text("#error")
