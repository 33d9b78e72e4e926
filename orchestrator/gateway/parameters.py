"""Translates a body to the front's parameters, with the defaults of OpenAI's API."""

from __future__ import annotations

import secrets
from dataclasses import replace

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.phrase import PhraseScope
from draftloop.request import MAX_SEED, GenerationParameters, SamplingParameters
from draftloop.speculation import Speculation
from orchestrator.gateway.generating import Generating, Prediction, Speculative
from orchestrator.gateway.messages import joined
from orchestrator.gateway.sampling_defaults import FIELDS, OPENAI
from orchestrator.gateway.schemas import ChatBody, CompletionBody

SEEDS = MAX_SEED + 1


def parameters(
    said: Generating,
    prompt: tuple[int, ...],
    tenant: str,
    seed: int,
    grammar: Grammar | None,
    defaults: SamplingParameters = OPENAI,
) -> list[GenerationParameters]:
    """The parameters of each of the n choices; choice i uses seed + i, as in vLLM."""
    first = GenerationParameters(
        token_ids=prompt,
        sampling=_sampling(said, defaults, grammar),
        max_tokens=_max_tokens(said),
        ends_itself=isinstance(said, ChatBody) and _max_tokens(said) is None,
        min_tokens=said.min_tokens or 0,
        stop=_stop(said.stop),
        stop_token_ids=tuple(said.stop_token_ids or ()),
        ignore_eos=bool(said.ignore_eos),
        allowed_token_ids=tuple(said.allowed_token_ids or ()),
        bad_words=tuple(said.bad_words or ()),
        speculation=_speculation(said.speculative or Speculative()),
        tenant=tenant,
        logprobs=_logprobs(said),
        prompt_logprobs=_prompt_logprobs(said),
        prediction=_prediction(said.prediction),
        cache_salt=said.cache_salt or "",
    )
    return [replace(first, seed=(seed + index) % SEEDS) for index in range(said.n or 1)]


def seed_of(said: Generating) -> int:
    """The seed that was given, or else a random one."""
    return secrets.randbits(64) if said.seed is None else said.seed


def _sampling(
    said: Generating, defaults: SamplingParameters, grammar: Grammar | None
) -> SamplingParameters:
    given = {name: getattr(said, name) for name in FIELDS if getattr(said, name) is not None}
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    return replace(
        defaults,
        **given,
        presence_penalty=said.presence_penalty or 0.0,
        frequency_penalty=said.frequency_penalty or 0.0,
        logit_bias=_logit_bias(said.logit_bias or {}),
        grammar=grammar,
    )


def _logit_bias(said: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in said:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise InvalidInput("logit_bias", "must have token ids as its names", key)
    return tuple((int(key), bias) for key, bias in said.items())


def _max_tokens(said: Generating) -> int | None:
    if said.prompt_alone:
        return 1  # the prompt's forward yields it in any case; it is not shown
    return said.max_completion_tokens or said.max_tokens


def _stop(said: str | list[str] | None) -> tuple[str, ...]:
    return (said,) if said and isinstance(said, str) else tuple(said or ())


def _speculation(said: Speculative) -> Speculation:
    return Speculation(
        strategy=said.strategy or "",
        max_draft_tokens=said.max_draft_tokens,
        phrases=PhraseScope(said.phrases or PhraseScope.SHARED),
    )


def _logprobs(said: Generating) -> int | None:
    if isinstance(said, CompletionBody):
        return said.logprobs
    if isinstance(said, ChatBody) and said.logprobs:
        return said.top_logprobs or 0
    return None


def _prompt_logprobs(said: Generating) -> int | None:
    """The larger number of the two fields that ask for some; None if neither does."""
    asked = said.prompt_logprobs, echoed_logprobs(said)
    return max((count for count in asked if count is not None), default=None)


def echoed_logprobs(said: Generating) -> int | None:
    """How many likeliest tokens to show for each token of an echoed prompt; None if not asked."""
    return said.logprobs if isinstance(said, CompletionBody) and said.echo else None


def _prediction(said: Prediction | None) -> str:
    return joined(said.content) if said else ""
