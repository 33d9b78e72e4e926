"""Options of a call by name, and the request that results from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from draftloop.client.fitting import biases, entries, require_valid_types, token_ids
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.phrase import PhraseScope
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.speculation import Speculation

Prompt = str | Sequence[int] | GenerationParameters


class Options(TypedDict, total=False):
    """Options of `generate` and `stream`; the server decides those that are left out or None.

    Names and meanings are those of `SamplingParameters`, `Speculation` and `GenerationParameters`.
    Temperature 0, the default, is greedy. A seed makes sampled text repeatable.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    grammar: Grammar | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    logprobs: int | None
    prompt_logprobs: int | None
    prediction: str | None
    cache_salt: str | None
    strategy: str | None
    max_draft_tokens: int | None
    phrases: PhraseScope | None
    tenant: str | None
    request_id: str | None


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


SAMPLING = _names(SamplingParameters) & set(Options.__annotations__) - {"seed"}
SPECULATION = _names(Speculation) & set(Options.__annotations__)
REQUEST = _names(GenerationParameters) & set(Options.__annotations__)


def parameters(prompt: Prompt, options: Options) -> GenerationParameters:
    """The request that a call stands for; its options override those of a prompt that is a request.

    Raises TypeError for an option that does not exist, and InvalidInput for a value that the wire
    cannot carry. The server checks all other rules.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        known = ", ".join(sorted(Options.__annotations__))
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; there are {known}")
    given = _normalized({name: value for name, value in options.items() if value is not None})
    base = _base(prompt)
    request = dataclasses.replace(
        base,
        sampling=dataclasses.replace(base.sampling, **_chosen(given, SAMPLING)),
        speculation=dataclasses.replace(base.speculation, **_chosen(given, SPECULATION)),
        **_chosen(given, REQUEST),
    )
    require_valid_types(request)
    return request


def _base(prompt: Prompt) -> GenerationParameters:
    if isinstance(prompt, GenerationParameters):
        return prompt
    if isinstance(prompt, str):
        return GenerationParameters(text=prompt)
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
        raise InvalidInput("prompt", "must be a text or token ids", prompt)
    return GenerationParameters(token_ids=tuple(prompt))


def _chosen(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _normalized(given: dict[str, Any]) -> dict[str, Any]:
    """The options in the form of our own types, with tuples; `stop` may be a single string."""
    if "stop" in given:
        stop = given["stop"]
        given["stop"] = (stop,) if isinstance(stop, str) else entries("stop", stop, "texts")
    for name in given.keys() & {"stop_token_ids", "allowed_token_ids"}:
        given[name] = token_ids(name, given[name])
    if "bad_words" in given:
        given["bad_words"] = entries("bad_words", given["bad_words"], "texts")
    if "logit_bias" in given:
        given["logit_bias"] = biases("logit_bias", given["logit_bias"])
    if "phrases" in given:
        given["phrases"] = _scope(given["phrases"])
    return given


def _scope(value: PhraseScope | str) -> PhraseScope:
    try:
        return PhraseScope(value)
    except ValueError:
        rule = f"must be one of {', '.join(scope.value for scope in PhraseScope)}"
        raise InvalidInput("phrases", rule, value) from None
