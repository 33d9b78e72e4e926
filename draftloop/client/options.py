"""What a call may say about its generation, by name, and what that means as a request."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.phrase import PhraseScope
from draftloop.request import GenerationParameters, SamplingParameters, check_characters
from draftloop.speculation import Speculation

Prompt = str | Sequence[int] | GenerationParameters

INT32, UINT32, UINT64 = 2**31 - 1, 2**32 - 1, 2**64 - 1


class Options(TypedDict, total=False):
    """Options of `generate` and `stream`; what is left out is the server's default.

    Names and meanings are those of `SamplingParameters`, `Speculation` and `GenerationParameters`.
    Temperature 0, the default, is greedy. A seed makes sampled text repeatable.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    grammar: Grammar | None
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    prediction: str
    strategy: str
    max_draft_tokens: int | None
    phrases: PhraseScope
    tenant: str
    request_id: str


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


SAMPLING = _names(SamplingParameters) & set(Options.__annotations__) - {"seed"}
SPECULATION = _names(Speculation) & set(Options.__annotations__)
REQUEST = _names(GenerationParameters) & set(Options.__annotations__)


def parameters(prompt: Prompt, options: Options) -> GenerationParameters:
    """The request that a call means; options win over those of a prompt that is a request.

    Raises TypeError for an option that does not exist, InvalidInput for a number that the wire
    cannot carry. All other rules are the server's.
    """
    given = _normalized(dict(options))
    if unknown := given.keys() - Options.__annotations__.keys():
        known = ", ".join(sorted(Options.__annotations__))
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; there are {known}")
    base = _base(prompt)
    said = dataclasses.replace(
        base,
        sampling=dataclasses.replace(base.sampling, **_chosen(given, SAMPLING)),
        speculation=dataclasses.replace(base.speculation, **_chosen(given, SPECULATION)),
        **_chosen(given, REQUEST),
    )
    _require_fitting(said)
    return said


def _base(prompt: Prompt) -> GenerationParameters:
    if isinstance(prompt, GenerationParameters):
        return prompt
    if isinstance(prompt, str):
        return GenerationParameters(text=prompt)
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise InvalidInput("prompt", "must be a text or token ids", prompt)
    return GenerationParameters(token_ids=tuple(prompt))


def _chosen(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _normalized(given: dict[str, Any]) -> dict[str, Any]:
    """With tuples, as our own types have them; one stop text may come without a list."""
    if isinstance(stop := given.get("stop"), str):
        given["stop"] = (stop,)
    elif stop is not None:
        given["stop"] = tuple(stop)
    for name in ("stop", "stop_token_ids", "logit_bias"):
        if name in given and given[name] is None:
            del given[name]
    if "stop_token_ids" in given:
        given["stop_token_ids"] = tuple(given["stop_token_ids"])
    if "logit_bias" in given:
        given["logit_bias"] = tuple(sorted(given["logit_bias"].items()))
    if "phrases" in given:
        given["phrases"] = _scope(given["phrases"])
    return given


def _scope(said: PhraseScope | str) -> PhraseScope:
    try:
        return PhraseScope(said)
    except ValueError:
        rule = f"must be one of {', '.join(scope.value for scope in PhraseScope)}"
        raise InvalidInput("phrases", rule, said) from None


def _require_fitting(said: GenerationParameters) -> None:
    """What protobuf itself would refuse, without a word about the field."""
    grammar = said.sampling.grammar
    for name, text in (
        ("text", said.text or ""),
        ("prediction", said.prediction),
        ("tenant", said.tenant),
        ("request_id", said.request_id),
        ("grammar", grammar.text if grammar is not None else ""),
        *(("stop", stop) for stop in said.stop),
    ):
        check_characters(name, text)
    for name, value, limit in (
        ("max_tokens", said.max_tokens, UINT32),
        ("logprobs", said.logprobs, UINT32),
        ("top_k", said.sampling.top_k, UINT32),
        ("seed", said.seed, UINT64),
        ("max_draft_tokens", said.speculation.max_draft_tokens, UINT32),
    ):
        _require_between(name, 0, value, limit)
    require_token_ids("prompt", said.token_ids or ())
    require_token_ids("stop_token_ids", said.stop_token_ids)
    require_token_ids("logit_bias", tuple(token for token, _ in said.sampling.logit_bias))


def require_token_ids(name: str, token_ids: Sequence[int]) -> None:
    """Raises InvalidInput for the first that the wire cannot carry."""
    for index, token in enumerate(token_ids):
        _require_between(f"{name}[{index}]", -INT32 - 1, token, INT32)


def _require_between(name: str, low: int, value: int | None, high: int) -> None:
    if value is None:
        return
    try:
        operator.index(value)  # numpy's integers too
    except TypeError:
        raise InvalidInput(name, "must be a whole number", value) from None
    if not low <= value <= high:
        raise InvalidInput(name, f"must be from {low} to {high}", value)
