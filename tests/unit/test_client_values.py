"""The client's options become the fields of a request; the retry policy is a value."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from draftloop.client import (
    DEFAULT_RETRY,
    AsyncClient,
    Client,
    GenerationParameters,
    Grammar,
    InvalidInput,
    Options,
    Overloaded,
    Retry,
    SamplingParameters,
    Speculation,
)
from draftloop.client.fitting import REAL_NUMBERS
from draftloop.client.options import REQUEST, SAMPLING, SPECULATION, parameters
from draftloop.rpc.convert import parameters_to_pb


def test_every_option_maps_to_exactly_one_field() -> None:
    assert {*SAMPLING, *SPECULATION, *REQUEST} == set(Options.__annotations__)
    assert len(SAMPLING) + len(SPECULATION) + len(REQUEST) == len(Options.__annotations__)


def test_every_field_is_reachable_by_an_option_or_listed() -> None:
    """A new field must be reachable by an option, or be listed here."""
    fields = {
        field.name
        for kind in (SamplingParameters, GenerationParameters)
        for field in dataclasses.fields(kind)
    }
    assert fields - set(Options.__annotations__) == {
        "text", "token_ids", "sampling", "speculation",
        "bans",  # the orchestrator derives them from other fields
        "ends_itself",  # only for chats over HTTP
    }  # fmt: skip


def test_options_set_fields_by_name() -> None:
    request = parameters(
        [1, 2],
        {
            "temperature": 0.5, "seed": 3, "stop": "end", "logit_bias": {9: 1.0, 4: -1.0},
            "strategy": "fused", "max_draft_tokens": 4, "stop_token_ids": [5], "max_tokens": 7,
        },
    )  # fmt: skip
    assert request == GenerationParameters(
        token_ids=(1, 2),
        sampling=SamplingParameters(temperature=0.5, logit_bias=((4, -1.0), (9, 1.0))),
        seed=3,
        stop=("end",),
        stop_token_ids=(5,),
        max_tokens=7,
        speculation=Speculation(strategy="fused", max_draft_tokens=4),
    )


def test_options_override_a_request() -> None:
    base = GenerationParameters(
        text="x", max_tokens=5, sampling=SamplingParameters(top_k=3, temperature=1.0)
    )
    request = parameters(base, {"temperature": 0.0, "stop": ["a", "b"]})
    assert request == dataclasses.replace(
        base, stop=("a", "b"), sampling=SamplingParameters(top_k=3, temperature=0.0)
    )


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("x", {"max_tokens": -1}, "^max_tokens: must be at least 1; got -1"),
        ("x", {"max_tokens": 2**32}, "^max_tokens: must be at most 4294967295; got 4294967296"),
        ("x", {"seed": 2**64}, "seed: must be from 0 to"),
        ("x", {"top_k": -2}, "top_k: must be from 0"),
        ("x", {"max_draft_tokens": -2}, "^speculation.max_draft_tokens: must be at least 1; got"),
        ("x", {"top_p": 0}, "^top_p: must be at least 1e-30; got 0"),
        ("x", {"repetition_penalty": 1e-50}, "^repetition_penalty: must be at least 1e-30; got"),
        ("x", {"logprobs": -1}, "logprobs: must be from 0"),
        ("x", {"prompt_logprobs": -1}, "prompt_logprobs: must be from 0"),
        ("x", {"stop_token_ids": [1, 2**31]}, r"stop_token_ids\[1\]: must be"),
        ([2**40], {}, r"prompt\[0\]: must be"),
    ],
)
def test_numbers_out_of_wire_range_are_refused(prompt: Any, options: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parameters(prompt, options)


WRONG_KINDS: list[tuple[dict[str, Any], str]] = [
    ({"stop": [1]}, "stop[0]: must be a text; got 1"),
    ({"stop": b"x"}, "stop: must be a sequence of texts; got b'x'"),
    ({"stop": 5}, "stop: must be a sequence of texts; got 5"),
    ({"allowed_token_ids": 5}, "allowed_token_ids: must be a sequence of token ids; got 5"),
    ({"bad_words": "no"}, "bad_words: must be a sequence of texts; got 'no'"),
    ({"bad_words": [5]}, "bad_words[0]: must be a text; got 5"),
    ({"min_tokens": 0.5}, "min_tokens: must be a whole number; got 0.5"),
    ({"stop_token_ids": 5}, "stop_token_ids: must be a sequence of token ids; got 5"),
    ({"stop_token_ids": "12"}, "stop_token_ids: must be a sequence of token ids; got '12'"),
    ({"stop_token_ids": [1.5]}, "stop_token_ids[0]: must be a whole number; got 1.5"),
    ({"grammar": "x"}, "grammar: must be a Grammar(format, text); got 'x'"),
    ({"grammar": Grammar("regex", None)}, "grammar.regex: must be a text; got None"),  # type: ignore[arg-type]
    ({"grammar": Grammar("yaml", "")},  # type: ignore[arg-type]
     "grammar: must be one of json_schema, regex, choice, grammar; got 'yaml'"),
    ({"logit_bias": [(1, 2)]},
     "logit_bias: must be a mapping of token ids to numbers; got [(1, 2)]"),
    ({"logit_bias": {1: 1.0, "a": 2.0}}, "logit_bias[1]: must be a whole number; got 'a'"),
    ({"logit_bias": {7: "much"}}, "logit_bias[7]: must be a number; got 'much'"),
    ({"max_tokens": "5"}, "max_tokens: must be a whole number; got '5'"),
    ({"seed": 1.0}, "seed: must be a whole number; got 1.0"),
    ({"ignore_eos": "no"}, "ignore_eos: must be true or false; got 'no'"),
    ({"strategy": 5}, "speculation.strategy: must be a text; got 5"),
    ({"phrases": []}, "phrases: must be one of shared, read_only, private, off; got []"),
    *(({name: 5}, f"{name}: must be a text; got 5")
      for name in ("prediction", "tenant", "request_id", "cache_salt")),
    *(({name: "1"}, f"{name}: must be a number; got '1'") for name in REAL_NUMBERS),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), WRONG_KINDS)
def test_option_of_a_wrong_type_is_named(options: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parameters("x", options)
    assert str(caught.value) == words


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_single_text_is_no_sequence_of_texts(name: str) -> None:
    """Given in a request object, its letters used to count as the texts."""
    request = GenerationParameters(text="x", **{name: "END"})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"{name}: must be a sequence of texts; got 'END'"):
        parameters(request, {})


def test_every_option_is_tested_with_a_wrong_type() -> None:
    tested = {name for options, _ in WRONG_KINDS for name in options}
    as_seed = {"top_k", "logprobs", "prompt_logprobs", "max_draft_tokens"}
    assert set(Options.__annotations__) == tested | as_seed


@pytest.mark.parametrize("prompt", [None, 5, b"ab", bytearray(b"ab")])
def test_prompt_of_a_wrong_type_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidInput, match="^prompt: must be a text or token ids; got"):
        parameters(prompt, {})


def test_none_means_unset() -> None:
    """Options of None change nothing, not even the values of a given request."""
    unset: Any = dict.fromkeys(Options.__annotations__)
    assert parameters("x", unset) == parameters("x", {})
    base = GenerationParameters(text="x", seed=3, max_tokens=5, tenant="t", stop=("a",))
    assert parameters(base, unset) == base


def test_numpy_and_fraction_numbers_are_accepted() -> None:
    options: Any = {
        "temperature": np.float32(0.5), "top_p": Fraction(1, 2), "max_tokens": np.int64(3),
        "stop_token_ids": np.array([4]), "ignore_eos": np.True_, "logit_bias": {np.int32(1): 2},
    }  # fmt: skip
    prompt: Any = np.array([1, 2])
    assert parameters_to_pb(parameters(prompt, options)).tokens.ids == [1, 2]


async def test_arguments_of_a_wrong_type_are_named() -> None:
    client: Any = AsyncClient("127.0.0.1:1")
    for call, words in (
        (client.tokenize(None), "text: must be a text; got None"),
        (client.tokenize(b"x"), "text: must be a text; got b'x'"),
        (client.detokenize(None), "token_ids: must be a sequence of token ids; got None"),
        (client.detokenize("12"), "token_ids: must be a sequence of token ids; got '12'"),
        (client.detokenize(["1"]), "token_ids[0]: must be a whole number; got '1'"),
        (client.generate("x", timeout="1"), "timeout: must be a number; got '1'"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert str(caught.value) == words


def test_misspelt_option_is_named() -> None:
    with pytest.raises(TypeError, match="no such option: temprature; there are "):
        parameters("x", {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


def test_retry_policy_is_comparable_hashable_and_has_a_repr() -> None:
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
def test_invalid_retry_policy_is_refused(mistake: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"retry.{next(iter(mistake))}"):
        Retry(**mistake)


async def test_backoff_grows_to_its_limit_and_follows_server_hints() -> None:
    """Four failures: 1, 2 and 3 (the limit) seconds with up to one more, then the server's hint."""
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
def test_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout: must be above 0"):
        Client(timeout=timeout)
