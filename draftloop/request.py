"""A client's request: its parameters and their rules."""

from __future__ import annotations

import secrets
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Self

from draftloop.bans import NO_BANS, Bans
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.logprobs import MAX_TOP_LOGPROBS
from draftloop.phrase import PhraseAccess, PhraseScope
from draftloop.speculation import FUSED, OUROBOROS, TOKEN_RECYCLING, Speculation
from draftloop.tree import MAX_SUCCESSORS

MAX_SEED = 2**64 - 1
MAX_TOP_K = 2**31 - 1
MAX_STOP_TEXTS = 16
MAX_STOP_LETTERS = 1024
MAX_TENANT_LETTERS = 128
TENANT_RULE = f"must be at most {MAX_TENANT_LETTERS} printable characters"
MAX_SALT_LETTERS = 256
MAX_ID_LETTERS = 128
LIKELY_ANSWER = 512  # tokens
MIN_POSITIVE = 1e-30  # single precision, which the wire uses, does not round this to zero
NEVER_ZERO = ("top_p", "repetition_penalty")  # for which 0 is not a valid value
# Up to this temperature, as in vLLM, decoding is greedy: noise would only choose among ties, and
# single precision rounds still smaller temperatures to zero.
GREEDY_TEMPERATURE = 1e-5
# Beyond the few most likely successors, `fused` has better sources, and every id is sent.
FUSED_SUCCESSORS = 4


def _require(field_name: str, rule: str, value: float, fulfilled: bool) -> None:
    if not fulfilled:  # NaN compares false with everything, so it fails every range
        raise InvalidInput(field_name, rule, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How tokens are sampled, in this order: bias, penalties, bans, grammar, temperature, filters.

    By convention, the repetition penalty applies to tokens of prompt and output, presence and
    frequency penalties to those of the output only. A temperature of up to GREEDY_TEMPERATURE is
    greedy; the filters (top-k, top-p, min-p, in this order) then have no effect.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bans: Bans = NO_BANS
    grammar: Grammar | None = None
    seed: int = 0

    def validate(self, vocabulary_size: int) -> None:
        """Raises InvalidInput for the first field that breaks its rule."""
        _require("temperature", "must be from 0 to 100", self.temperature,
                 0 <= self.temperature <= 100)  # fmt: skip
        _require("top_k", f"must be from 0 (off) to {MAX_TOP_K}", self.top_k,
                 0 <= self.top_k <= MAX_TOP_K)  # fmt: skip
        _require("top_p", "must be above 0 and at most 1", self.top_p, 0 < self.top_p <= 1)
        _require("min_p", "must be from 0 to 1", self.min_p, 0 <= self.min_p <= 1)
        _require("repetition_penalty", "must be above 0 and at most 100", self.repetition_penalty,
                 0 < self.repetition_penalty <= 100)  # fmt: skip
        for name in NEVER_ZERO:
            value = getattr(self, name)
            _require(name, f"must be at least {MIN_POSITIVE}", value, value >= MIN_POSITIVE)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(name, "must be from -2 to 2", value, -2 <= value <= 2)
        _require("seed", f"must be from 0 to {MAX_SEED}", self.seed, 0 <= self.seed <= MAX_SEED)
        check_biases(self.logit_bias, vocabulary_size)
        self.bans.validate(vocabulary_size)
        if self.grammar is not None:
            self.grammar.validate()
            if self.bans.any:  # together they might forbid every token
                raise InvalidInput("bans", "must not be given with a grammar", "both")

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy, without noise."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalized(self) -> bool:
        """Whether the distribution depends on which tokens came before."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def filtered(self) -> bool:
        """Whether unlikely tokens are excluded."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters:
    """A client's request before it is checked; None means not given. Give text or token_ids.

    If `seed` is None, one is drawn; `sampling.seed` is ignored. `sampling.bans` must not be given:
    they are derived from `allowed_token_ids`, `bad_words` and `min_tokens`. `ends_itself`: without
    `max_tokens`, the limit is the room left in the context, unless the server has a limit of its
    own. `logprobs` asks for log-probabilities of the output's tokens and of this many most likely
    tokens at each position; `prompt_logprobs` asks for those of the prompt. `prediction` is text
    that the output may resemble: drafts are made from it, and it changes nothing else.
    `cache_salt`: prefixes are shared only with requests of the tenant that have the same salt.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParameters = SamplingParameters()
    seed: int | None = None
    max_tokens: int | None = None
    ends_itself: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    speculation: Speculation = Speculation()
    request_id: str = ""
    tenant: str = ""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prediction: str = ""
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """What the text of an output includes that it usually omits.

    `named_tokens`: special tokens to write by their names. `ending`: whether to include the stop
    text or stop token that ended the output.
    """

    named_tokens: frozenset[int] = frozenset()
    ending: bool = False


USUAL = TextForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One checked request with its prompt tokenized.

    `open_ended`: no limit was given, and `max_tokens` is the room left in the context. `origin`:
    its number in the phrase log, 64 random bits. The request id would not do, since a client may
    give the same id to many requests.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParameters
    max_tokens: int
    speculation: Speculation
    min_tokens: int = 0
    tenant: str = ""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prediction: tuple[int, ...] = ()
    cache_salt: str = ""
    text_form: TextForm = USUAL
    open_ended: bool = False
    origin: int = field(default_factory=lambda: secrets.randbits(64))

    def expected_remaining(self, length: int) -> int:
        """Estimated number of tokens to come when the session holds `length` tokens."""
        left = len(self.prompt) + self.max_tokens - length
        return min(left, LIKELY_ANSWER) if self.open_ended else left

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self.speculation.strategy

    def without_recycling(self) -> Self:
        """The same request; for `fused`, without recycling if there are other free sources."""
        speculation = self.speculation
        if not (speculation.fused.own_text or speculation.fused.phrases):
            return self
        fused = replace(speculation.fused, recycling=False)
        return replace(self, speculation=replace(speculation, fused=fused))

    @property
    def successors(self) -> int:
        """How many of the target's most likely successors of every node the drafts need."""
        if self.strategy == TOKEN_RECYCLING:
            return MAX_SUCCESSORS
        recycles = self.strategy == FUSED and self.speculation.fused.recycling
        return FUSED_SUCCESSORS if recycles else 0

    @property
    def prefix_group(self) -> str | None:
        """The group that shares keys and values of common prefixes; None if nothing is shared."""
        if not self.speculation.phrases.reads:
            return None
        # unambiguous, because a tenant's name contains no line break
        return f"{self.tenant}\n{self.cache_salt}" if self.cache_salt else self.tenant

    @property
    def prefix_read_only(self) -> bool:
        """Whether it uses shared prefixes but adds none."""
        return self.speculation.phrases is not PhraseScope.SHARED

    def access(self, target_fingerprint: str) -> PhraseAccess:
        """Whose phrases it uses. With a cache salt, scope `shared` becomes private for phrases."""
        salted = self.cache_salt and self.speculation.phrases is PhraseScope.SHARED
        access = PhraseAccess(
            scope=PhraseScope.PRIVATE if salted else self.speculation.phrases,
            target_fingerprint=target_fingerprint,
            tenant=self.tenant,
            origin=self.origin,
        )
        without = self.strategy == OUROBOROS and not self.speculation.ouroboros.history
        return access.without_history() if without else access


def check_token_ids(field_name: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    """Raises InvalidInput unless every id is in the vocabulary and there is at least one."""
    if not token_ids:
        raise InvalidInput(field_name, "must not be empty", list(token_ids))
    if min(token_ids) >= 0 and max(token_ids) < vocabulary_size:
        return  # checking a million ids one by one would take long
    for index, token in enumerate(token_ids):
        if not 0 <= token < vocabulary_size:
            rule = f"must be from 0 to {vocabulary_size - 1}"
            raise InvalidInput(f"{field_name}[{index}]", rule, token)


def check_token_count(field_name: str, count: int, vocabulary_size: int) -> None:
    """Raises InvalidInput if there are more entries than tokens: some token would occur twice."""
    if count > vocabulary_size:
        rule = f"must have at most {vocabulary_size} entries, one for each token"
        raise InvalidInput(field_name, rule, f"{count} entries")


def check_token_counts(vocabulary_size: int, **fields: Sized | None) -> None:
    """`check_token_count` for fields that list tokens, before they are converted or copied."""
    for name, entries in fields.items():
        check_token_count(name, len(entries or ()), vocabulary_size)


def check_biases(biases: Sequence[tuple[int, float]], vocabulary_size: int) -> None:
    """Raises InvalidInput unless all are within their limits, and each token occurs once."""
    check_token_count("logit_bias", len(biases), vocabulary_size)
    if len({token for token, _ in biases}) == len(biases) and all(
        0 <= token < vocabulary_size and -100 <= bias <= 100 for token, bias in biases
    ):
        return
    biased = set[int]()
    for token, bias in biases:
        _require("logit_bias", "must name a token once", token, token not in biased)
        biased.add(token)
        rule = f"must name token ids from 0 to {vocabulary_size - 1}"
        _require("logit_bias", rule, token, 0 <= token < vocabulary_size)
        _require(f"logit_bias[{token}]", "must be from -100 to 100", bias, -100 <= bias <= 100)


def check_characters(field_name: str, text: str) -> None:
    """Raises InvalidInput for unpaired surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise InvalidInput(field_name, "must be whole characters", half) from None


def is_request_id(text: str) -> bool:
    """Whether the text may be written to log lines and headers as it is."""
    return 0 < len(text) <= MAX_ID_LETTERS and text.isascii() and text.isprintable()


def is_tenant(text: str) -> bool:
    """Whether the text is a valid name of a tenant."""
    return len(text) <= MAX_TENANT_LETTERS and text.isprintable()


def check_length(field_name: str, count: int, context_length: int) -> None:
    """Raises InvalidInput unless `count` tokens leave room for at least one more."""
    if count >= context_length:
        rule = f"must have at most {context_length - 1} tokens (context length {context_length})"
        raise InvalidInput(field_name, rule, f"{count} tokens")


def check_top_logprobs(count: int | None, field_name: str = "logprobs") -> None:
    """Raises InvalidInput if more alternatives are requested than the limit."""
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidInput(field_name, f"must be from 0 to {MAX_TOP_LOGPROBS}", count)
