"""The box with the answer, and the status of answers that end early."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.browser.conftest import TIMEOUT_S
from tests.browser.scripted import stream
from tests.browser.test_playground import RUN

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from tests.browser.playground import Playground

COMPLETIONS = "**/v1/completions"
# Counts how often the box's height is read, and the frames in the meantime.
COUNT = """() => {
  window.asked = window.frames_drawn = 0;
  const { get } = Object.getOwnPropertyDescriptor(Element.prototype, "scrollHeight");
  Object.defineProperty(Element.prototype, "scrollHeight", {
    get() {
      window.asked += 1;
      return get.call(this);
    },
  });
  const frame = () => requestAnimationFrame(() => {
    window.frames_drawn += 1;
    frame();
  });
  frame();
}"""
MANY = [f"word{at} " for at in range(4000)]
FEW = ["one ", "two ", "three "]


def script_answer(
    playground: Playground, texts: list[str], fallback_rounds: int = 0
) -> list[dict[str, Any]]:
    """Gives every drafted run this answer; plain decoding is real. Returns the list of requests."""
    requests: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        requests.append(body)
        if body["speculative"].get("strategy") == "autoregressive":
            route.continue_()
        else:
            route.fulfill(content_type="text/event-stream", body=stream(texts, fallback_rounds))

    playground.page.route(COMPLETIONS, answer)
    return requests


def test_rounds_between_two_frames_cost_one_layout(playground: Playground) -> None:
    """Each round used to read two layouts of the whole answer: quadratic time in its length."""
    script_answer(playground, MANY)
    playground.page.evaluate(COUNT)
    playground.run()
    layouts, frames = playground.page.evaluate("[window.asked, window.frames_drawn]")
    assert layouts <= 2 * (frames + 1)  # and once at the end
    assert playground.at("#answer .round").count() == len(MANY)
    assert playground.text("#answer") == "".join(MANY)
    end = "box => box.scrollHeight - box.scrollTop - box.clientHeight"
    assert playground.at("#answer").evaluate(end) < 2


def test_every_token_and_round_of_a_long_answer_can_be_selected(playground: Playground) -> None:
    script_answer(playground, MANY)
    playground.run()
    assert playground.text("#answer .round.current") == MANY[-1]
    playground.at("#answer").focus()
    for key, token in (("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("ArrowLeft", -2)):
        playground.page.keyboard.press(key)
        assert playground.text("#answer .token.chosen") == MANY[token]
        assert playground.text("#answer .round.current") == MANY[token]
    playground.at("#answer .token").nth(7).click()
    playground.page.keyboard.press("ArrowRight")
    assert playground.text("#answer .token.chosen") == MANY[8]
    script_answer(playground, FEW)
    playground.run()  # nothing of the earlier answer is left
    assert playground.text("#answer") == "".join(FEW)
    assert playground.at("#answer .token.chosen").count() == 0
    assert playground.text("#answer .round.current") == FEW[-1]


def test_scroll_position_is_kept_while_the_answer_grows(playground: Playground) -> None:
    script_answer(playground, MANY)
    playground.run()
    playground.page.unroute(COMPLETIONS)
    # token by token, so that it does not end before the page has been scrolled
    playground.fill(**{**RUN, "max_tokens": 1500, "strategy": "autoregressive"})
    playground.at("#run").click()
    scrolls = "() => answer.scrollHeight > answer.clientHeight + 200"
    playground.page.wait_for_function(scrolls, timeout=TIMEOUT_S * 1000)
    playground.at("#answer").evaluate("box => (box.scrollTop = 0)")
    rounds_before = playground.at("#answer .round").count()
    playground.at("#answer .round").nth(rounds_before + 3).wait_for(state="attached")
    assert playground.at("#answer").evaluate("box => box.scrollTop") == 0
    playground.page.keyboard.press("Escape")
    playground.wait("Stopped after")


def test_status_after_stop_counts_the_stopped_run(playground: Playground) -> None:
    """In the second half of a comparison, the status used to count the first run's tokens."""
    script_answer(playground, FEW)
    playground.fill(**{**RUN, "max_tokens": 1500})
    playground.at("#compare").click()
    playground.at("#plain .round").nth(len(FEW) + 2).wait_for()
    playground.page.keyboard.press("Escape")
    playground.wait("Stopped after")
    tokens = playground.at("#plain .token").count()
    assert tokens > len(FEW)
    assert playground.text("#status") == f"Stopped after {tokens} tokens"


def test_rounds_without_a_drafter_are_reported(playground: Playground) -> None:
    """Rounds without a drafter used to be described as if no draft had been worth its time."""
    script_answer(playground, FEW, fallback_rounds=2)
    playground.run(seed=5)
    summary = "Ended at the limit of tokens: 3 tokens, 1.0 a second, seed 5"
    assert playground.text("#status") == f"{summary}, 2 rounds without the drafter"
    assert "or no drafter answered" in playground.text("#about-tree")


def test_single_token_has_no_speed(playground: Playground) -> None:
    """The speed of a single token used to be shown as 0.0 tokens a second."""
    playground.run(**{**RUN, "max_tokens": 1})
    assert (
        playground.text("#status") == f"Ended at the limit of tokens: 1 token, seed {RUN['seed']}"
    )


def test_seed_is_sent_exactly_or_not_at_all(playground: Playground) -> None:
    """Larger seeds used to be rounded, so that another seed was sent than was typed."""
    requests = script_answer(playground, FEW)
    playground.fill(seed=2**53)
    playground.at("#run").click()
    assert playground.at("#seed").evaluate("field => field.validity.rangeOverflow")
    playground.run(seed=2**53 - 1)
    assert [body["seed"] for body in requests] == [2**53 - 1]
    assert f"seed {2**53 - 1}" in playground.text("#status")


# The first answer stays open until it is stopped; the second never begins.
HELD = """words => {
  let asked = 0;
  window.fetch = (_, { signal }) => new Promise((resolve, reject) => {
    const stopped = (stop) => signal.addEventListener("abort", () => stop(signal.reason));
    asked += 1;
    if (asked > 1) return stopped(reject);
    const body = new ReadableStream({
      start(control) {
        window.send = () => control.enqueue(new TextEncoder().encode(words));
        stopped((reason) => control.error(reason));
      },
    });
    resolve(new Response(body));
  });
}"""
# A busy page: tokens arrive, then Escape and Ctrl-Enter, and only then is a frame drawn.
BETWEEN_FRAMES = """async () => {
  const press = (key, ctrlKey = false) => document.dispatchEvent(
    new KeyboardEvent("keydown", { key, ctrlKey }));
  const turns = async () => { for (let turn = 0; turn < 200; turn += 1) await null; };
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  window.send();
  await turns();
  press("Escape");
  await turns();
  press("Enter", true);
  await frame();
  await frame();
}"""


def test_stopped_run_is_not_drawn_into_the_next(playground: Playground) -> None:
    """A stopped run's last frame used to be drawn after the next run's start, with old figures."""
    words = stream(FEW).removesuffix("data: [DONE]\n\n")
    playground.page.evaluate(HELD, words)
    playground.at("#run").click()
    playground.page.evaluate(BETWEEN_FRAMES)
    assert playground.text("#status") == "Writing …"
    assert playground.text("#count") == "0" and playground.text("#round-name") == "–"
    assert playground.at("#round").is_disabled()
    playground.page.keyboard.press("Escape")
    playground.wait("Stopped after 0 tokens")
