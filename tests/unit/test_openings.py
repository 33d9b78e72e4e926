"""Which requests may try whether opening a drafter session pays by now."""

from __future__ import annotations

from typing import Any

from orchestrator.gains import MIN_ROUNDS_UNOPENED, Gains
from tests.unit.test_choice import DEAR_NS, PROMPT, model_choice


def test_prompts_too_long_for_a_drafter_do_not_use_up_tries() -> None:
    # All requests share the tries; a text without room at any drafter must not spend them.
    gains = Gains()
    long = model_choice(DEAR_NS, left=400, gains=gains)
    drafter: Any = long.drafter
    drafter.has_room = False
    assert not any(long.should_ask(PROMPT) for _ in range(10 * MIN_ROUNDS_UNOPENED))
    short = model_choice(DEAR_NS, left=400, gains=gains)
    for _ in range(MIN_ROUNDS_UNOPENED + 1):
        short.should_ask(PROMPT)
    assert short.drafter.is_requested
