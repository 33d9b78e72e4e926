"""Which requests may try whether opening a drafter session pays by now."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.choice import TRY_COST_PER_ROUND
from orchestrator.gains import MIN_ROUNDS_UNOPENED, TRY_ROUNDS, Gains
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


@pytest.mark.parametrize(("draft_ns", "prefilled"), [(DEAR_NS, 0), (DEAR_NS, 100), (1.0, 0)])
def test_opening_is_tried_the_less_often_the_more_it_costs(draft_ns: float, prefilled: int) -> None:
    """A try costs the prefill, ten rounds here, and what its rounds lose."""
    gains = Gains()
    opened: list[int] = []
    model = model_choice(draft_ns, left=0, gains=gains)
    loss = max(0.0, -model.advantage())
    cost = (100 - prefilled) / 10 + TRY_ROUNDS * loss
    for number in range(1500):
        if not model.drafter.is_requested:
            model.drafter.prefilled = prefilled  # type: ignore[attr-defined]
            model.should_ask(PROMPT)
            if model.drafter.is_requested:
                opened.append(number)
        elif len(opened) < 2:
            model = model_choice(draft_ns, left=0, gains=gains)
    assert opened[1] - opened[0] == pytest.approx(cost / TRY_COST_PER_ROUND, rel=0.02)
