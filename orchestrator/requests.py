"""Turns a client's parameters into a checked request."""

from __future__ import annotations

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
from orchestrator.bans import Sequences, read_bad_words, read_bans
from orchestrator.config import MOST_TOKENS, OrchestratorSettings
from orchestrator.grammar_trials import GrammarTrials
from orchestrator.tokenizer import Tokenizer


class RequestReader:
    """Checks everything a client may set. Raises InvalidInput for the first broken rule."""

    def __init__(
        self, settings: OrchestratorSettings, tokenizer: Tokenizer, grammars: GrammarTrials
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._grammars = grammars
        # Tokenized texts of the latest request, cached because its choices share them.
        self._prediction_read: tuple[str, tuple[int, ...]] = ("", ())
        self._bad_words_read: tuple[tuple[str, ...], Sequences] = ((), ())

    async def read(self, said: GenerationParameters, model: ModelInfo) -> GenerationRequest:
        """Returns the checked request. `model`: the target model."""
        prompt = await self._prompt(said, model)
        seed = secrets.randbits(64) if said.seed is None else said.seed
        if said.sampling.grammar is not None:
            await self._require_grammar(said.sampling.grammar, said, model)
        stops = _stop_token_ids(said, model)
        bans = read_bans(said, stops, model.vocabulary_size, self._bad_words(said.bad_words))
        sampling = dataclasses.replace(said.sampling, seed=seed, bans=bans)
        sampling.validate(model.vocabulary_size)
        check_top_logprobs(said.logprobs)
        check_top_logprobs(said.prompt_logprobs, "prompt_logprobs")
        max_tokens = self._max_tokens(said)
        return GenerationRequest(
            request_id=_request_id(said.request_id),
            prompt=prompt,
            sampling=sampling,
            # more tokens would not fit into the context
            max_tokens=min(max_tokens, model.context_length - len(prompt)),
            speculation=self._speculation(said.speculation, model),
            tenant=_tenant(said.tenant),
            stop=_stop_texts(said.stop),
            stop_token_ids=stops,
            logprobs=said.logprobs,
            prompt_logprobs=said.prompt_logprobs,
            prediction=await self._prediction(said.prediction, model),
            cache_salt=_salt(said.cache_salt),
            open_ended=said.ends_itself and max_tokens == MOST_TOKENS,
        )

    async def _prompt(self, said: GenerationParameters, model: ModelInfo) -> tuple[int, ...]:
        if said.text is None and said.token_ids is None:
            raise InvalidInput("prompt", "must be given as text or tokens", None)
        if said.text == "":
            raise InvalidInput("text", "must not be empty", "")
        field, token_ids = "tokens.ids", said.token_ids or ()
        if said.text is not None:
            field, token_ids = "text", tuple(await self._tokenizer.encoded(said.text))
        check_length(field, len(token_ids), model.context_length)
        check_token_ids(field, token_ids, model.vocabulary_size)
        return token_ids

    async def _require_grammar(
        self, grammar: Grammar, said: GenerationParameters, model: ModelInfo
    ) -> None:
        if said.ignore_eos:
            rule = "must be false with a grammar, which ends a text"
            raise InvalidInput("ignore_eos", rule, True)
        await self._grammars.require(grammar, model)

    async def _prediction(self, text: str, model: ModelInfo) -> tuple[int, ...]:
        if not text:
            return ()
        if text != self._prediction_read[0]:
            self._prediction_read = text, tuple(await self._tokenizer.encoded(text))
        _, token_ids = self._prediction_read
        if len(token_ids) > model.context_length:
            rule = f"must have at most {model.context_length} tokens"
            raise InvalidInput("prediction", rule, f"{len(token_ids)} tokens")
        return token_ids

    def _bad_words(self, words: tuple[str, ...]) -> Sequences:
        if words != self._bad_words_read[0]:
            self._bad_words_read = words, read_bad_words(words, self._tokenizer)
        return self._bad_words_read[1]

    def _max_tokens(self, said: GenerationParameters) -> int:
        most = said.max_tokens
        if most is None:
            most = self._settings.limit(ends_itself=said.ends_itself)
        if most < 1:
            raise InvalidInput("max_tokens", "must be at least 1", most)
        if not 0 <= said.min_tokens <= most:
            rule = f"must be from 0 to max_tokens, {most}"
            raise InvalidInput("min_tokens", rule, said.min_tokens)
        return most

    def _speculation(self, said: Speculation, model: ModelInfo) -> Speculation:
        name = said.strategy or self._settings.default_strategy
        if name not in STRATEGIES:
            rule = f"must be one of {', '.join(STRATEGIES)}"
            raise InvalidInput("speculation.strategy", rule, name)
        speculation = dataclasses.replace(said, strategy=name)
        speculation.validate(model.max_draft_nodes)
        return speculation


def _stop_token_ids(said: GenerationParameters, model: ModelInfo) -> frozenset[int]:
    if said.stop_token_ids:
        check_token_count("stop_token_ids", len(said.stop_token_ids), model.vocabulary_size)
        # Checked before a set is made of them: huge integers can be chosen to share one hash.
        check_token_ids("stop_token_ids", said.stop_token_ids, model.vocabulary_size)
    stops = frozenset(said.stop_token_ids)
    return stops if said.ignore_eos else stops | frozenset(model.stop_token_ids)


def _request_id(said: str) -> str:
    """The client's id, or a new one. It goes into every log line and to both model services."""
    if not said:
        return uuid.uuid4().hex[:12]
    if not is_request_id(said):
        rule = f"must be at most {MAX_ID_LETTERS} printable ASCII characters"
        raise InvalidInput("request_id", rule, said)
    return said


def _tenant(name: str) -> str:
    if not is_tenant(name):
        raise InvalidInput("tenant", TENANT_RULE, name)
    return name


def _salt(said: str) -> str:
    if len(said) > MAX_SALT_LETTERS:
        rule = f"must have at most {MAX_SALT_LETTERS} characters"
        raise InvalidInput("cache_salt", rule, f"{len(said)} characters")
    return said


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
