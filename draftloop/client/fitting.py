"""Checks that a request fits into its message: protobuf's own errors would not name the field.

All functions raise InvalidInput.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.grammar import FORMATS, Grammar
from draftloop.logprobs import MAX_TOP_LOGPROBS
from draftloop.request import (
    MAX_SEED,
    MAX_TOP_K,
    MIN_POSITIVE,
    NEVER_ZERO,
    GenerationParameters,
    check_characters,
)

INT32, UINT32 = 2**31 - 1, 2**32 - 1
REAL_NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def require_valid_types(parameters: GenerationParameters) -> None:
    """Checks the types and ranges that the wire can carry; the server checks all other rules."""
    _require_texts(parameters)
    _require_grammar(parameters.sampling.grammar)
    for name in REAL_NUMBERS:
        require_number(name, getattr(parameters.sampling, name))
    for name in NEVER_ZERO:
        if (real := getattr(parameters.sampling, name)) < MIN_POSITIVE:
            raise InvalidInput(name, f"must be at least {MIN_POSITIVE}", real)
    for name, value, most, rule in (
        ("max_tokens", parameters.max_tokens, UINT32, _at_least_one_rule(parameters.max_tokens)),
        ("min_tokens", parameters.min_tokens, UINT32, f"must be from 0 to {UINT32}"),
        ("logprobs", parameters.logprobs, UINT32, f"must be from 0 to {MAX_TOP_LOGPROBS}"),
        ("prompt_logprobs", parameters.prompt_logprobs, UINT32,
         f"must be from 0 to {MAX_TOP_LOGPROBS}"),
        ("top_k", parameters.sampling.top_k, UINT32, f"must be from 0 (off) to {MAX_TOP_K}"),
        ("seed", parameters.seed, MAX_SEED, f"must be from 0 to {MAX_SEED}"),
        ("speculation.max_draft_tokens", parameters.speculation.max_draft_tokens, UINT32,
         _at_least_one_rule(parameters.speculation.max_draft_tokens)),
    ):  # fmt: skip
        if value is not None:
            _require_whole(name, value)
            if not 0 <= value <= most:
                raise InvalidInput(name, rule, value)
    if parameters.ignore_eos not in (True, False):
        raise InvalidInput("ignore_eos", "must be true or false", parameters.ignore_eos)
    token_ids("prompt", parameters.token_ids or ())
    token_ids("stop_token_ids", parameters.stop_token_ids)
    token_ids("allowed_token_ids", parameters.allowed_token_ids)
    token_ids("logit_bias", tuple(token for token, _ in parameters.sampling.logit_bias))
    for token, bias in parameters.sampling.logit_bias:
        require_number(f"logit_bias[{token}]", bias)


def require_text(name: str, value: Any) -> None:
    """Requires a string, possibly empty, without unpaired surrogates."""
    if not isinstance(value, str):
        raise InvalidInput(name, "must be a text", value)
    check_characters(name, value)


def require_number(name: str, value: Any) -> None:
    """Requires a real number."""
    try:
        math.isfinite(value)  # accepts every kind of number that protobuf accepts, and no string
    except (TypeError, OverflowError):
        raise InvalidInput(name, "must be a number", value) from None


def entries(name: str, value: Any, kind: str) -> tuple[Any, ...]:
    """The entries of an iterable; a string does not count as one."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise InvalidInput(name, f"must be a sequence of {kind}", value)
    return tuple(value)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Requires a sequence of token ids; their range is that of the wire, not of a vocabulary."""
    found = entries(name, value, "token ids")
    for index, token in enumerate(found):
        _require_whole(f"{name}[{index}]", token)
        if not -INT32 - 1 <= token <= INT32:
            raise InvalidInput(f"{name}[{index}]", f"must be from {-INT32 - 1} to {INT32}", token)
    return found


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Biases as pairs sorted by token, the form in which our own types hold them."""
    if not isinstance(value, Mapping):
        raise InvalidInput(name, "must be a mapping of token ids to numbers", value)
    token_ids(name, tuple(value))  # checked first, because other keys could not be sorted
    return tuple(sorted(value.items()))


def _require_texts(parameters: GenerationParameters) -> None:
    stop = entries("stop", parameters.stop, "texts")  # a text itself is a sequence of texts
    bad_words = entries("bad_words", parameters.bad_words, "texts")
    for name, text in (
        ("text", "" if parameters.text is None else parameters.text),
        ("prediction", parameters.prediction),
        ("tenant", parameters.tenant),
        ("cache_salt", parameters.cache_salt),
        ("request_id", parameters.request_id),
        ("speculation.strategy", parameters.speculation.strategy),
        *((f"stop[{index}]", text) for index, text in enumerate(stop)),
        *((f"bad_words[{index}]", word) for index, word in enumerate(bad_words)),
    ):
        require_text(name, text)


def _require_grammar(grammar: Any) -> None:
    if grammar is None:
        return
    if not isinstance(grammar, Grammar):
        raise InvalidInput("grammar", "must be a Grammar(format, text)", grammar)
    if grammar.format not in FORMATS:
        raise InvalidInput("grammar", f"must be one of {', '.join(FORMATS)}", grammar.format)
    require_text(grammar.field, grammar.text)


def _require_whole(name: str, value: Any) -> None:
    try:
        operator.index(value)  # accepts numpy's integers too
    except TypeError:
        raise InvalidInput(name, "must be a whole number", value) from None


def _at_least_one_rule(value: Any) -> str:
    """The rule to name for a field whose only upper limit is that of the wire."""
    too_large = isinstance(value, int) and value > UINT32
    return f"must be at most {UINT32}" if too_large else "must be at least 1"
