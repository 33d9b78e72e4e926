"""From a client's message to a checked request."""

from __future__ import annotations

import dataclasses
import secrets
import uuid

from draftloop.errors import InvalidInput
from draftloop.model_info import ModelInfo
from draftloop.request import (
    MAX_STOP_TEXTS,
    GenerationRequest,
    SamplingParameters,
    check_length,
    check_token_ids,
)
from draftloop.rpc.convert import sampling_from_pb
from orchestrator.config import OrchestratorSettings
from orchestrator.strategies import STRATEGIES
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb


class RequestReader:
    """Checks everything a client may say. Raises InvalidInput for the first broken rule."""

    def __init__(self, settings: OrchestratorSettings, tokenizer: Tokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer

    def read(self, message: pb.GenerationParameters, model: ModelInfo) -> GenerationRequest:
        """The request that the message stands for."""
        prompt = self._prompt(message, model)
        sampling = _sampling(message)
        sampling.validate(model.vocabulary_size)
        stops = frozenset(message.stop_token_ids)
        if stops:
            check_token_ids("stop_token_ids", sorted(stops), model.vocabulary_size)
        if not message.ignore_eos:
            stops |= frozenset(model.stop_token_ids)
        speculation = message.speculation
        has_limit = speculation.HasField("max_draft_tokens")
        return GenerationRequest(
            request_id=message.request_id or uuid.uuid4().hex[:12],
            prompt=prompt,
            sampling=sampling,
            max_tokens=self._max_tokens(message),
            strategy=_strategy(speculation.strategy or self._settings.default_strategy),
            max_draft_tokens=(
                _draft_limit(speculation.max_draft_tokens, model) if has_limit else None
            ),
            stop=_stop_texts(message),
            stop_token_ids=stops,
        )

    def _prompt(self, message: pb.GenerationParameters, model: ModelInfo) -> tuple[int, ...]:
        kind = message.WhichOneof("prompt")
        if kind is None:
            raise InvalidInput("prompt", "must be given as text or tokens", None)
        field = "text" if kind == "text" else "tokens.ids"
        if kind == "text":
            if not message.text:
                raise InvalidInput("text", "must not be empty", "")
            token_ids = self._tokenizer.encode(message.text)
        else:
            token_ids = list(message.tokens.ids)
        check_token_ids(field, token_ids, model.vocabulary_size)
        check_length(field, len(token_ids), model.context_length)
        return tuple(token_ids)

    def _max_tokens(self, message: pb.GenerationParameters) -> int:
        if not message.HasField("max_tokens"):
            return self._settings.default_max_tokens
        if message.max_tokens < 1:
            raise InvalidInput("max_tokens", "must be at least 1", message.max_tokens)
        return message.max_tokens


def _sampling(message: pb.GenerationParameters) -> SamplingParameters:
    sampling = sampling_from_pb(message.sampling)
    if message.sampling.HasField("seed"):
        return sampling
    return dataclasses.replace(sampling, seed=secrets.randbits(64))


def _strategy(name: str) -> str:
    if name not in STRATEGIES:
        raise InvalidInput("speculation.strategy", f"must be one of {', '.join(STRATEGIES)}", name)
    return name


def _draft_limit(value: int, model: ModelInfo) -> int:
    if not 1 <= value <= model.max_draft_nodes:
        rule = f"must be from 1 to {model.max_draft_nodes}"
        raise InvalidInput("speculation.max_draft_tokens", rule, value)
    return value


def _stop_texts(message: pb.GenerationParameters) -> tuple[str, ...]:
    if len(message.stop) > MAX_STOP_TEXTS:
        rule = f"must have at most {MAX_STOP_TEXTS} texts"
        raise InvalidInput("stop", rule, f"{len(message.stop)} texts")
    if "" in message.stop:
        raise InvalidInput("stop", "must not hold an empty text", list(message.stop))
    return tuple(message.stop)
