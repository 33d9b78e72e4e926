"""Request parameters: every broken rule is named with its field, limit and value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftloop.bans import Bans
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.request import SamplingParameters, check_length, check_token_ids

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature: must be from 0 to 100; got -0.1"),
        ("temperature", NAN, "temperature: must be from 0 to 100; got nan"),
        ("temperature", INFINITY, "temperature: must be from 0 to 100; got inf"),
        ("top_k", -1, "top_k: must be from 0 (off) to 2147483647; got -1"),
        ("top_p", 0.0, "top_p: must be above 0 and at most 1; got 0.0"),
        ("top_p", 1.5, "top_p: must be above 0 and at most 1; got 1.5"),
        ("min_p", -0.5, "min_p: must be from 0 to 1; got -0.5"),
        (
            "repetition_penalty",
            0.0,
            "repetition_penalty: must be above 0 and at most 100; got 0.0",
        ),
        ("repetition_penalty", 1e-40, "repetition_penalty: must be at least 1e-30; got 1e-40"),
        ("presence_penalty", 3.0, "presence_penalty: must be from -2 to 2; got 3.0"),
        ("frequency_penalty", NAN, "frequency_penalty: must be from -2 to 2; got nan"),
        ("seed", -1, f"seed: must be from 0 to {2**64 - 1}; got -1"),
        ("seed", 2**64, f"seed: must be from 0 to {2**64 - 1}; got {2**64}"),
        ("logit_bias", ((8, 1.0),), "logit_bias: must name token ids from 0 to 7; got 8"),
        ("logit_bias", ((3, 101.0),), "logit_bias[3]: must be from -100 to 100; got 101.0"),
    ],
)
def test_invalid_sampling_parameters_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(SamplingParameters(), **{field: value}).validate(vocabulary_size=8)
    assert str(caught.value) == message


def test_boundary_values_are_accepted() -> None:
    SamplingParameters().validate(8)
    SamplingParameters(
        temperature=100, top_k=2**31 - 1, top_p=1.0, min_p=1.0, repetition_penalty=100,
        presence_penalty=-2, frequency_penalty=2, logit_bias=((7, -100.0),), seed=2**64 - 1,
    ).validate(8)  # fmt: skip


def test_greedy_filtered_and_penalized_properties() -> None:
    assert SamplingParameters(top_p=0.5).greedy
    assert not SamplingParameters(top_p=0.5).filtered
    assert SamplingParameters(temperature=1, min_p=0.1).filtered
    assert SamplingParameters(frequency_penalty=0.1).penalized


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "prompt.token_ids: must not be empty; got []"),
        ([1, 8], "prompt.token_ids[1]: must be from 0 to 7; got 8"),
        ([-1], "prompt.token_ids[0]: must be from 0 to 7; got -1"),
    ],
)
def test_invalid_token_ids_are_refused(token_ids: list[int], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_token_ids("prompt.token_ids", token_ids, 8)
    assert str(caught.value) == message


def test_prompt_must_leave_room_for_one_token() -> None:
    check_length("prompt", 127, 128)
    with pytest.raises(InvalidInput) as caught:
        check_length("prompt", 128, 128)
    assert str(caught.value) == (
        "prompt: must have at most 127 tokens (context length 128); got '128 tokens'"
    )


def test_grammar_together_with_bans_is_refused() -> None:
    # Together they could exclude every token, so they are refused.
    parameters = SamplingParameters(
        grammar=Grammar("regex", "a"), bans=Bans(min_tokens=4, ends=(0,))
    )
    with pytest.raises(InvalidInput, match="must not be given with a grammar"):
        parameters.validate(100)
