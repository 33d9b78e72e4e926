"""Which requests run in one forward pass, and how much of prompts it takes."""

from __future__ import annotations

from typing import cast

from draftloop.runtime.forward import Forward
from draftloop.runtime.kv_cache import KVCache, Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import Text
from draftloop.runtime.step import (
    LONGEST_S,
    MAX_STEP_TOKENS,
    MIN_PROMPT_TOKENS,
    ROUND_TOKENS,
    Step,
    StepSize,
)
from tests.support.toy_model import FakeModel

MS = 1_000_000
PROMPT = 100  # tokens that take as long as a forward pass should


def new_model() -> FakeModel:
    model = FakeModel()
    model.step_size = StepSize(LONGEST_S * 1000 * MS / PROMPT)
    return model


def wish(model: FakeModel, tokens: int, nodes: int = 0) -> Forward:
    slot = Slot(cast(KVCache, None), 0, 1)
    return Forward(cast(LanguageModel, model), slot, [0] * tokens, [0] * nodes, [-1] * nodes)


def test_rounds_join_a_prompt_but_a_second_prompt_waits() -> None:
    target = new_model()
    step = Step(wish(target, PROMPT))
    assert step.try_add(wish(target, 1, nodes=32))
    assert step.try_add(wish(target, ROUND_TOKENS, nodes=8))
    assert not step.try_add(wish(target, ROUND_TOKENS + 1))
    assert step.try_add(wish(target, 2))


def test_short_prompts_share_a_step() -> None:
    target = new_model()
    step = Step(wish(target, 1, nodes=4))
    assert step.try_add(wish(target, PROMPT // 2))
    assert step.try_add(wish(target, PROMPT // 2))
    assert not step.try_add(wish(target, PROMPT // 2))


def test_first_prompt_of_any_length_fits_after_rounds() -> None:
    # A step takes its first prompt even if the prompt is longer than a step should be.
    target = new_model()
    assert Step(wish(target, 1)).try_add(wish(target, 3 * PROMPT))


def test_step_refuses_another_model_and_more_than_its_size() -> None:
    target = new_model()
    assert not Step(wish(target, 1)).try_add(wish(new_model(), 1))
    assert not Step(wish(target, 1, nodes=MAX_STEP_TOKENS - 1)).try_add(wish(target, 1))
    step = Step(wish(target, 1))
    assert step.try_add(wish(target, 1, nodes=MAX_STEP_TOKENS - 2))
    assert not step.try_add(wish(target, 1))


def with_shared_text(forward: Forward, *, waits: bool = False) -> Forward:
    """The request in a session with the shared text; with `waits` it can copy its rows."""
    forward.slot.text = Text([1] * 64, "")
    forward.renewed = (lambda: forward) if waits else None
    return forward


def test_request_waits_for_a_prefix_computed_in_the_step() -> None:
    """The prompt may be the first or a later one; rounds compute only their own text."""
    target = new_model()
    first = Step(with_shared_text(wish(target, PROMPT // 4)))
    assert not first.try_add(with_shared_text(wish(target, PROMPT // 4), waits=True))
    second = Step(wish(target, PROMPT // 4))
    assert second.try_add(with_shared_text(wish(target, PROMPT // 4), waits=True))
    assert not second.try_add(with_shared_text(wish(target, PROMPT // 4), waits=True))
    assert second.try_add(with_shared_text(wish(target, PROMPT // 4)))  # this one could not copy it
    rounds = Step(with_shared_text(wish(target, 1)))
    assert rounds.try_add(with_shared_text(wish(target, ROUND_TOKENS)))
    assert rounds.try_add(with_shared_text(wish(target, PROMPT // 4), waits=True))


def test_step_size_follows_measured_row_times() -> None:
    size = StepSize()
    assert size.prompt_tokens == MAX_STEP_TOKENS
    size.observe(MIN_PROMPT_TOKENS - 1, 1000 * MS)
    assert size.prompt_tokens == MAX_STEP_TOKENS  # too few rows tell nothing
    size.observe(256, 256 * 4 * MS)
    assert size.prompt_tokens == LONGEST_S * 1000 / 4
    for _ in range(40):
        size.observe(100, 100 * 8 * MS)
    assert size.prompt_tokens == LONGEST_S * 1000 / 8
    for _ in range(40):
        size.observe(100, 100 * 1000 * MS)
    assert size.prompt_tokens == MIN_PROMPT_TOKENS


def test_step_size_follows_the_configured_time_limit() -> None:
    assert StepSize(row_ns=1e6, longest_s=0.05).prompt_tokens == 50
    assert StepSize(row_ns=1e6).prompt_tokens == LONGEST_S * 1000
