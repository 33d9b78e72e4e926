"""From a client's parameters to a request: defaults, and the message of every broken rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from draftloop.phrase import PhraseScope
from draftloop.request import (
    LIKELY_ANSWER,
    MAX_STOP_LETTERS,
    MAX_STOP_TEXTS,
    GenerationParameters,
    SamplingParameters,
)
from draftloop.speculation import AUTOREGRESSIVE, SPECULATIVE, STRATEGIES, Speculation
from orchestrator.config import OrchestratorSettings
from orchestrator.grammar_trials import GrammarTrials
from orchestrator.requests import RequestReader
from orchestrator.tokenizer import Tokenizer
from tests.support.model_info import model_info

MODEL = model_info(stop_token_ids=(2,))
PARAMETERS = GenerationParameters(token_ids=(5, 6, 7))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


@pytest.fixture(scope="module")
def reader(tokenizer: Tokenizer) -> RequestReader:
    settings = OrchestratorSettings(default_strategy=AUTOREGRESSIVE, default_max_tokens=9)
    return RequestReader(settings, tokenizer, GrammarTrials(settings.tokenizer, 9))


async def test_unset_parameters_have_server_defaults(reader: RequestReader) -> None:
    request, again = await reader.read(PARAMETERS, MODEL), await reader.read(PARAMETERS, MODEL)
    assert request.prompt == (5, 6, 7)
    assert request.max_tokens == 9 and request.strategy == AUTOREGRESSIVE
    assert request.stop_token_ids == {2}
    assert request.request_id != again.request_id
    assert request.sampling.seed != again.sampling.seed


async def test_requests_with_the_same_id_have_distinct_origins(
    reader: RequestReader,
) -> None:
    parameters = replace(PARAMETERS, request_id="of a whole agent run")
    origins = {(await reader.read(parameters, MODEL)).access("m").origin for _ in range(3)}
    assert len(origins) == 3 and all(0 <= origin < 2**64 for origin in origins)


async def test_set_parameters_are_kept(reader: RequestReader) -> None:
    parameters = replace(
        PARAMETERS,
        request_id="mine",
        seed=0,
        sampling=SamplingParameters(temperature=0.7, seed=99),
        max_tokens=1,
        speculation=Speculation(strategy=SPECULATIVE, max_draft_tokens=8),
        stop=("\n",),
        stop_token_ids=(11,),
        tenant="theirs",
    )
    request = await reader.read(parameters, MODEL)
    assert (request.request_id, request.tenant, request.stop) == ("mine", "theirs", ("\n",))
    assert request.sampling == SamplingParameters(temperature=0.7, seed=0)
    assert request.max_tokens == 1 and request.speculation.max_draft_tokens == 8
    assert request.strategy == SPECULATIVE
    assert request.stop_token_ids == {2, 11}


async def test_max_tokens_is_limited_by_the_context(reader: RequestReader) -> None:
    """The tables for drafts are sized by the largest possible output."""
    request = await reader.read(replace(PARAMETERS, max_tokens=2**31 - 1), MODEL)
    assert request.max_tokens == MODEL.context_length - 3


@pytest.mark.parametrize(
    ("default", "ends_itself", "expected"), [(None, False, 12), (None, True, 1997), (9, True, 9)]
)
async def test_self_ending_answer_may_fill_the_context(
    tokenizer: Tokenizer, default: int | None, ends_itself: bool, expected: int
) -> None:
    """The expected cost of such an answer is that of a usual length."""
    settings = OrchestratorSettings(default_max_tokens=default)
    reader = RequestReader(settings, tokenizer, GrammarTrials(settings.tokenizer, 9))
    model = replace(MODEL, context_length=2000 if ends_itself else 15)
    request = await reader.read(replace(PARAMETERS, ends_itself=ends_itself), model)
    assert request.max_tokens == expected
    assert request.expected_remaining(3) == min(expected, LIKELY_ANSWER)
    assert request.expected_remaining(3 + expected) == 0


async def test_ignore_eos_removes_the_models_stop_tokens(reader: RequestReader) -> None:
    assert not (await reader.read(replace(PARAMETERS, ignore_eos=True), MODEL)).stop_token_ids
    parameters = replace(PARAMETERS, ignore_eos=True, stop_token_ids=(2,))
    assert (await reader.read(parameters, MODEL)).stop_token_ids == {2}


async def test_text_is_tokenized(reader: RequestReader, tokenizer: Tokenizer) -> None:
    request = await reader.read(GenerationParameters(text="def main():"), MODEL)
    assert tokenizer.decode(list(request.prompt)) == "def main():"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": None}, "prompt: must be given as text or tokens; got None"),
        ({"text": ""}, "text: must not be empty; got ''"),
        ({"token_ids": ()}, "tokens.ids: must not be empty; got []"),
        ({"token_ids": (5, 4096)}, "tokens.ids[1]: must be from 0 to 4095; got 4096"),
        (
            {"token_ids": (5,) * 16},
            "tokens.ids: must have at most 15 tokens (context length 16); got '16 tokens'",
        ),
        ({"max_tokens": 0}, "max_tokens: must be at least 1; got 0"),
        ({"max_tokens": -3}, "max_tokens: must be at least 1; got -3"),
        ({"seed": 2**64}, f"seed: must be from 0 to {2**64 - 1}; got {2**64}"),
        ({"stop": ("a", "")}, "stop: must not hold an empty text; got ['a', '']"),
        ({"stop": ("a",) * 17}, "stop: must have at most 16 texts; got '17 texts'"),
        (
            {"stop": ("a", "b" * 1025)},
            "stop: must have texts of at most 1024 characters; got '1025 characters'",
        ),
        (
            {"bad_words": ("a", "b" * 1025)},
            "bad_words[1]: must have at most 1024 characters; got '1025 characters'",
        ),
        ({"stop_token_ids": (1, -1)}, "stop_token_ids[1]: must be from 0 to 4095; got -1"),
        (
            {"stop_token_ids": (1,) * 4097},
            "stop_token_ids: must have at most 4096 entries, one for each token; "
            "got '4097 entries'",
        ),
        (
            {"allowed_token_ids": (1,) * 4097},
            "allowed_token_ids: must have at most 4096 entries, one for each token; "
            "got '4097 entries'",
        ),
        (
            {"request_id": "a\nb"},
            "request_id: must be at most 128 printable ASCII characters; got 'a\\nb'",
        ),
        ({"tenant": "a\nb"}, "tenant: must be at most 128 printable characters; got 'a\\nb'"),
        (
            {"speculation": Speculation(strategy="magic")},
            f"speculation.strategy: must be one of {', '.join(STRATEGIES)}; got 'magic'",
        ),
        (
            {"speculation": Speculation(max_draft_tokens=9)},
            "speculation.max_draft_tokens: must be from 1 to 8; got 9",
        ),
        (
            {"sampling": SamplingParameters(temperature=-1.0)},
            "temperature: must be from 0 to 100; got -1.0",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_broken_rules_are_named(
    reader: RequestReader, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await reader.read(replace(PARAMETERS, **change), MODEL)
    assert str(caught.value) == message


async def test_too_long_text_is_reported_in_tokens(reader: RequestReader) -> None:
    with pytest.raises(InvalidInput, match=r"^text: must have at most 15 tokens"):
        await reader.read(GenerationParameters(text="def main(): " * 20), MODEL)


async def test_prediction_is_tokenized_per_request(
    reader: RequestReader, tokenizer: Tokenizer
) -> None:
    for text in ("one two", "three", "", "one two"):
        request = await reader.read(replace(PARAMETERS, prediction=text), MODEL)
        assert request.prediction == tuple(tokenizer.encode(text) if text else ())


async def test_bad_words_are_tokenized_once_for_all_choices(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of long words take time on the event loop, and there may be 128 choices."""
    settings = OrchestratorSettings()
    reader = RequestReader(settings, tokenizer, GrammarTrials(settings.tokenizer, 9))
    read = list[str]()

    def encode(text: str, *, add_special_tokens: bool) -> list[int]:
        read.append(text)
        return [len(text)]

    monkeypatch.setattr(tokenizer, "encode", encode)
    for words in (("a", "bc"), ("a", "bc"), ("d",), ()):
        request = await reader.read(replace(PARAMETERS, bad_words=words), MODEL)
        expected = {(len(word) + space,) for word in words for space in (0, 1)}
        assert set(request.sampling.bans.sequences) == expected
    assert read == ["a", " a", "bc", " bc", "d", " d"]


class Unhashable(int):
    """An integer that must not be hashed."""

    __hash__ = None  # type: ignore[assignment]


async def test_invalid_stop_tokens_are_refused_before_hashing(reader: RequestReader) -> None:
    """Clients can construct any number of integers beyond 64 bits with equal hashes."""
    parameters = replace(PARAMETERS, stop_token_ids=(Unhashable(4096),))
    with pytest.raises(InvalidInput, match=r"^stop_token_ids\[0\]: must be from 0 to 4095"):
        await reader.read(parameters, MODEL)


async def test_prediction_is_limited_by_the_context(
    reader: RequestReader, tokenizer: Tokenizer
) -> None:
    parameters = replace(PARAMETERS, prediction="one two three four five six")
    count = len(tokenizer.encode(parameters.prediction))
    assert (await reader.read(parameters, replace(MODEL, context_length=count))).prediction
    with pytest.raises(InvalidInput, match="prediction: must have at most"):
        await reader.read(parameters, replace(MODEL, context_length=count - 1))


async def test_maximum_number_of_stop_texts_is_accepted(reader: RequestReader) -> None:
    texts = (f"{number:0{MAX_STOP_LETTERS}}" for number in range(MAX_STOP_TEXTS))
    parameters = replace(PARAMETERS, stop=tuple(texts))
    assert (await reader.read(parameters, MODEL)).stop == parameters.stop


async def test_cache_salt_separates_prefixes_within_a_tenant(reader: RequestReader) -> None:
    """Prefixes are shared by requests with the same salt; phrases are not shared."""
    unsalted = await reader.read(replace(PARAMETERS, tenant="a"), MODEL)
    salted = await reader.read(replace(PARAMETERS, tenant="a", cache_salt="s"), MODEL)
    other_requests = [
        await reader.read(replace(PARAMETERS, tenant=tenant, cache_salt=salt), MODEL)
        for tenant, salt in (("a", "t"), ("b", "s"), ("as", ""), ("", "as"))
    ]
    assert len({request.prefix_group for request in (unsalted, salted, *other_requests)}) == 6
    assert salted.access("m").scope is PhraseScope.PRIVATE and not salted.prefix_read_only
    assert unsalted.access("m").scope is PhraseScope.SHARED
    with pytest.raises(InvalidInput, match="cache_salt: must have at most 256 characters"):
        await reader.read(replace(PARAMETERS, cache_salt="s" * 257), MODEL)


@pytest.mark.parametrize("scope", [scope for scope in PhraseScope if scope != "shared"])
async def test_cache_salt_keeps_the_phrase_scope_of_the_request(
    reader: RequestReader, scope: PhraseScope
) -> None:
    # A phrase scope that shares nothing also holds among requests with the same cache salt.
    parameters = replace(PARAMETERS, tenant="a", speculation=Speculation(phrases=scope))
    plain, salted = [
        await reader.read(replace(parameters, cache_salt=salt), MODEL) for salt in ("", "s")
    ]
    assert salted.prefix_read_only
    assert (plain.prefix_group is None) == (salted.prefix_group is None) == (not scope.reads)
    assert salted.access("m").scope is scope
