"""Options become the request that they name; the retry policy is a value."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from draftloop.client import (
    DEFAULT_RETRY,
    Client,
    GenerationParameters,
    InvalidInput,
    Options,
    Overloaded,
    Retry,
    SamplingParameters,
    Speculation,
)
from draftloop.client.options import REQUEST, SAMPLING, SPECULATION, parameters


def test_every_option_reaches_one_field() -> None:
    assert {*SAMPLING, *SPECULATION, *REQUEST} == set(Options.__annotations__)
    assert len(SAMPLING) + len(SPECULATION) + len(REQUEST) == len(Options.__annotations__)


def test_every_field_is_an_option_or_a_value_of_its_own() -> None:
    """A field that is added must be reachable, or be named here."""
    fields = {
        field.name
        for kind in (SamplingParameters, GenerationParameters)
        for field in dataclasses.fields(kind)
    }
    assert fields - set(Options.__annotations__) == {
        "text", "token_ids", "sampling", "speculation",
    }  # fmt: skip


def test_options_by_name() -> None:
    said = parameters(
        [1, 2],
        {
            "temperature": 0.5, "seed": 3, "stop": "end", "logit_bias": {9: 1.0, 4: -1.0},
            "strategy": "fused", "max_draft_tokens": 4, "stop_token_ids": [5], "max_tokens": 7,
        },
    )  # fmt: skip
    assert said == GenerationParameters(
        token_ids=(1, 2),
        sampling=SamplingParameters(temperature=0.5, logit_bias=((4, -1.0), (9, 1.0))),
        seed=3,
        stop=("end",),
        stop_token_ids=(5,),
        max_tokens=7,
        speculation=Speculation(strategy="fused", max_draft_tokens=4),
    )


def test_options_win_over_a_request() -> None:
    base = GenerationParameters(
        text="x", max_tokens=5, sampling=SamplingParameters(top_k=3, temperature=1.0)
    )
    said = parameters(base, {"temperature": 0.0, "stop": ["a", "b"]})
    assert said == dataclasses.replace(
        base, stop=("a", "b"), sampling=SamplingParameters(top_k=3, temperature=0.0)
    )


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("x", {"max_tokens": -1}, "max_tokens: must be from 0 to 4294967295; got -1"),
        ("x", {"seed": 2**64}, "seed: must be from 0 to"),
        ("x", {"top_k": -2}, "top_k: must be from 0"),
        ("x", {"max_draft_tokens": -2}, "max_draft_tokens: must be from 0"),
        ("x", {"logprobs": -1}, "logprobs: must be from 0"),
        ("x", {"stop_token_ids": [1, 2**31]}, r"stop_token_ids\[1\]: must be"),
        ([2**40], {}, r"prompt\[0\]: must be"),
    ],
)
def test_numbers_that_the_wire_cannot_carry(prompt: Any, options: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parameters(prompt, options)


def test_misspelt_options_are_named() -> None:
    with pytest.raises(TypeError, match="no such option: temprature; there are "):
        parameters("x", {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


def test_a_retry_policy_is_a_value() -> None:
    policy = Retry(attempts=2, errors=(Overloaded,))
    assert policy == Retry(attempts=2, errors=(Overloaded,)) != DEFAULT_RETRY
    assert hash(policy) == hash(Retry(attempts=2, errors=(Overloaded,)))
    names = {"Retry": Retry, "Overloaded": Overloaded}
    shown = repr(policy).replace("<class 'draftloop.errors.Overloaded'>", "Overloaded")
    assert eval(shown, names) == policy


@pytest.mark.parametrize(
    "mistake",
    [
        {"attempts": 0},
        {"initial_backoff_s": -1.0},
        {"max_backoff_s": float("nan")},
        {"backoff_multiplier": 0.5},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(mistake: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"retry.{next(iter(mistake))}"):
        Retry(**mistake)


async def test_waits_grow_up_to_their_limit_and_follow_the_server() -> None:
    """Four failures: 1, 2 and 3 (the limit) seconds and up to one more, then what was asked for."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    failures = [Overloaded("full", retry_after_s=hint) for hint in (0, 0, 0, 60)]

    async def attempt() -> str:
        if failures:
            raise failures.pop(0)
        return "done"

    policy = Retry(attempts=5, initial_backoff_s=1, max_backoff_s=3)
    assert await policy.run(attempt, None, sleep) == "done"
    assert 1 <= waits[0] <= 2 and 2 <= waits[1] <= 3 and 3 <= waits[2] <= 4 and waits[3] == 60


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_is_above_zero(timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout: must be above 0"):
        Client(timeout=timeout)
