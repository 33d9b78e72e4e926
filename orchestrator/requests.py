"""Turns a client's parameters into a checked request."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import uuid

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.model_info import ModelInfo
from draftloop.request import (
    MAX_ID_LETTERS,
    MAX_SALT_LETTERS,
    MAX_STOP_LETTERS,
    MAX_STOP_TEXTS,
    TENANT_RULE,
    GenerationParameters,
    GenerationRequest,
    check_length,
    check_token_count,
    check_token_ids,
    check_top_logprobs,
    is_request_id,
    is_tenant,
)
from draftloop.speculation import STRATEGIES, Speculation
from orchestrator.bans import TokenSequences, read_bad_words, read_bans
from orchestrator.config import MAX_OUTPUT_TOKENS, OrchestratorSettings
from orchestrator.grammar_trials import GrammarTrials
from orchestrator.tokenizer import LONG_TEXT, Tokenizer


class RequestReader:
    """Checks everything a client may set. Raises InvalidInput for the first broken rule."""

    def __init__(
        self, settings: OrchestratorSettings, tokenizer: Tokenizer, grammars: GrammarTrials
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._grammars = grammars
        # Tokenized texts of the latest request, cached because its choices share them.
        self._tokenized_prediction: tuple[str, tuple[int, ...]] = ("", ())
        self._tokenized_bad_words: tuple[tuple[str, ...], TokenSequences] = ((), ())

    async def read(self, parameters: GenerationParameters, model: ModelInfo) -> GenerationRequest:
        """Returns the checked request. `model`: the target model."""
        prompt = await self._prompt(parameters, model)
        seed = secrets.randbits(64) if parameters.seed is None else parameters.seed
        if parameters.sampling.grammar is not None:
            await self._require_grammar(parameters.sampling.grammar, parameters, model)
        stop_token_ids = _stop_token_ids(parameters, model)
        bad_words = await self._bad_words(parameters.bad_words)
        bans = read_bans(parameters, stop_token_ids, model.vocabulary_size, bad_words)
        sampling = dataclasses.replace(parameters.sampling, seed=seed, bans=bans)
        sampling.validate(model.vocabulary_size)
        check_top_logprobs(parameters.logprobs)
        check_top_logprobs(parameters.prompt_logprobs, "prompt_logprobs")
        max_tokens = self._max_tokens(parameters)
        return GenerationRequest(
            request_id=_request_id(parameters.request_id),
            prompt=prompt,
            sampling=sampling,
            # more tokens would not fit into the context
            max_tokens=min(max_tokens, model.context_length - len(prompt)),
            min_tokens=parameters.min_tokens,
            speculation=self._speculation(parameters.speculation, model),
            tenant=_tenant(parameters.tenant),
            stop=_stop_texts(parameters.stop),
            stop_token_ids=stop_token_ids,
            logprobs=parameters.logprobs,
            prompt_logprobs=parameters.prompt_logprobs,
            prediction=await self._prediction(parameters.prediction, model),
            cache_salt=_salt(parameters.cache_salt),
            open_ended=parameters.ends_itself and max_tokens == MAX_OUTPUT_TOKENS,
        )

    async def _prompt(self, parameters: GenerationParameters, model: ModelInfo) -> tuple[int, ...]:
        if parameters.text is None and parameters.token_ids is None:
            raise InvalidInput("prompt", "must be given as text or tokens", None)
        if parameters.text == "":
            raise InvalidInput("text", "must not be empty", "")
        field, token_ids = "tokens.ids", parameters.token_ids or ()
        if parameters.text is not None:
            field, token_ids = "text", tuple(await self._tokenizer.encode_async(parameters.text))
        check_length(field, len(token_ids), model.context_length)
        check_token_ids(field, token_ids, model.vocabulary_size)
        return token_ids

    async def _require_grammar(
        self, grammar: Grammar, parameters: GenerationParameters, model: ModelInfo
    ) -> None:
        if parameters.ignore_eos:
            rule = "must be false with a grammar, which ends a text"
            raise InvalidInput("ignore_eos", rule, True)
        await self._grammars.require(grammar, model)

    async def _prediction(self, text: str, model: ModelInfo) -> tuple[int, ...]:
        if not text:
            return ()
        if text != self._tokenized_prediction[0]:
            self._tokenized_prediction = text, tuple(await self._tokenizer.encode_async(text))
        _, token_ids = self._tokenized_prediction
        if len(token_ids) > model.context_length:
            rule = f"must have at most {model.context_length} tokens"
            raise InvalidInput("prediction", rule, f"{len(token_ids)} tokens")
        return token_ids

    async def _bad_words(self, words: tuple[str, ...]) -> TokenSequences:
        if words == self._tokenized_bad_words[0]:
            return self._tokenized_bad_words[1]
        if sum(map(len, words)) > LONG_TEXT:  # must not hold up other requests
            sequences = await asyncio.to_thread(read_bad_words, words, self._tokenizer)
        else:
            sequences = read_bad_words(words, self._tokenizer)
        self._tokenized_bad_words = words, sequences
        return sequences

    def _max_tokens(self, parameters: GenerationParameters) -> int:
        max_tokens = parameters.max_tokens
        if max_tokens is None:
            max_tokens = self._settings.default_token_limit(ends_itself=parameters.ends_itself)
        if max_tokens < 1:
            raise InvalidInput("max_tokens", "must be at least 1", max_tokens)
        if not 0 <= parameters.min_tokens <= max_tokens:
            rule = f"must be from 0 to max_tokens, {max_tokens}"
            raise InvalidInput("min_tokens", rule, parameters.min_tokens)
        return max_tokens

    def _speculation(self, requested: Speculation, model: ModelInfo) -> Speculation:
        name = requested.strategy or self._settings.default_strategy
        if name not in STRATEGIES:
            rule = f"must be one of {', '.join(STRATEGIES)}"
            raise InvalidInput("speculation.strategy", rule, name)
        speculation = dataclasses.replace(requested, strategy=name)
        speculation.validate(model.max_draft_nodes)
        return speculation


def _stop_token_ids(parameters: GenerationParameters, model: ModelInfo) -> frozenset[int]:
    if parameters.stop_token_ids:
        check_token_count("stop_token_ids", len(parameters.stop_token_ids), model.vocabulary_size)
        # Checked before a set is made of them: huge integers can be chosen to share one hash.
        check_token_ids("stop_token_ids", parameters.stop_token_ids, model.vocabulary_size)
    stop_token_ids = frozenset(parameters.stop_token_ids)
    return (
        stop_token_ids
        if parameters.ignore_eos
        else stop_token_ids | frozenset(model.stop_token_ids)
    )


def _request_id(request_id: str) -> str:
    """The client's id, or a new one. It goes into every log line and to both model services."""
    if not request_id:
        return uuid.uuid4().hex[:12]
    if not is_request_id(request_id):
        rule = f"must be at most {MAX_ID_LETTERS} printable ASCII characters"
        raise InvalidInput("request_id", rule, request_id)
    return request_id


def _tenant(name: str) -> str:
    if not is_tenant(name):
        raise InvalidInput("tenant", TENANT_RULE, name)
    return name


def _salt(salt: str) -> str:
    if len(salt) > MAX_SALT_LETTERS:
        rule = f"must have at most {MAX_SALT_LETTERS} characters"
        raise InvalidInput("cache_salt", rule, f"{len(salt)} characters")
    return salt


def _stop_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) > MAX_STOP_TEXTS:
        rule = f"must have at most {MAX_STOP_TEXTS} texts"
        raise InvalidInput("stop", rule, f"{len(texts)} texts")
    if "" in texts:
        raise InvalidInput("stop", "must not hold an empty text", list(texts))
    longest = max(map(len, texts), default=0)
    if longest > MAX_STOP_LETTERS:  # output that may begin a stop text is held back
        rule = f"must have texts of at most {MAX_STOP_LETTERS} characters"
        raise InvalidInput("stop", rule, f"{longest} characters")
    return texts
