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
from orchestrator.gateway.messages import join_text
from orchestrator.gateway.sampling_defaults import FIELDS, OPENAI
from orchestrator.gateway.schemas import ChatBody, CompletionBody

SEEDS = MAX_SEED + 1


def parameters(
    body: Generating,
    prompt: tuple[int, ...],
    tenant: str,
    seed: int,
    grammar: Grammar | None,
    defaults: SamplingParameters = OPENAI,
) -> list[GenerationParameters]:
    """The parameters of each of the n choices; choice i uses seed + i, as in vLLM."""
    first = GenerationParameters(
        token_ids=prompt,
        sampling=_sampling(body, defaults, grammar),
        max_tokens=_max_tokens(body),
        ends_itself=isinstance(body, ChatBody) and _max_tokens(body) is None,
        min_tokens=body.min_tokens or 0,
        stop=_stop(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=tuple(body.bad_words or ()),
        speculation=_speculation(body.speculative or Speculative()),
        tenant=tenant,
        logprobs=_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body),
        prediction=_prediction(body.prediction),
        cache_salt=body.cache_salt or "",
    )
    return [replace(first, seed=(seed + index) % SEEDS) for index in range(body.n or 1)]


def seed_of(body: Generating) -> int:
    """The seed that was given, or else a random one."""
    return secrets.randbits(64) if body.seed is None else body.seed


def _sampling(
    body: Generating, defaults: SamplingParameters, grammar: Grammar | None
) -> SamplingParameters:
    given = {name: getattr(body, name) for name in FIELDS if getattr(body, name) is not None}
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    return replace(
        defaults,
        **given,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}),
        grammar=grammar,
    )


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise InvalidInput("logit_bias", "must have token ids as its names", key)
    return tuple((int(key), bias) for key, bias in biases.items())


def _max_tokens(body: Generating) -> int | None:
    if body.prompt_only:
        return 1  # the prompt's forward yields it in any case; it is not shown
    return body.max_completion_tokens or body.max_tokens


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if stop and isinstance(stop, str) else tuple(stop or ())


def _speculation(speculative: Speculative) -> Speculation:
    return Speculation(
        strategy=speculative.strategy or "",
        max_draft_tokens=speculative.max_draft_tokens,
        phrases=PhraseScope(speculative.phrases or PhraseScope.SHARED),
    )


def _logprobs(body: Generating) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    if isinstance(body, ChatBody) and body.logprobs:
        return body.top_logprobs or 0
    return None


def _prompt_logprobs(body: Generating) -> int | None:
    """The larger number of the two fields that ask for some; None if neither does."""
    counts = body.prompt_logprobs, echoed_logprobs(body)
    return max((count for count in counts if count is not None), default=None)


def echoed_logprobs(body: Generating) -> int | None:
    """How many likeliest tokens to show for each token of an echoed prompt; None if not asked."""
    return body.logprobs if isinstance(body, CompletionBody) and body.echo else None


def _prediction(prediction: Prediction | None) -> str:
    return join_text(prediction.content) if prediction else ""
