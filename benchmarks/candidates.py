"""Candidates that each source offers along the true path of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drafter_service.config import DRAFT_TEMPERATURE
from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT
from draftloop.request import SamplingParameters
from draftloop.runtime.forward import Forward
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.sampling import Sampler
from draftloop.tree import MAX_SUCCESSORS, DraftBudget
from phrase_store.index import PhraseIndex, grow
from phrase_store.session import BYTES_PER_TOKEN, MIN_TOKENS

MAX_OFFERS = 8


class Ranked:
    """The draft model: its ranking with the request's own noise, from one forward over the text."""

    forwards = 1

    def __init__(self, ranking: Sequence[Sequence[int]]) -> None:
        self._ranking = ranking

    def offers(self, position: int, width: int) -> Sequence[int]:
        """The first `width` tokens of the ranking at `position`."""
        return self._ranking[position][:width]

    def commit(self, start: int, end: int) -> None:
        """Does nothing: the ranking was computed from the path itself."""


class Phrases:
    """A phrase index over the request's own committed text, or over texts of other requests."""

    forwards = 0

    def __init__(self, text: Sequence[int], others: PhraseIndex | None = None) -> None:
        self._text = text
        self._others = others
        tokens = max(MIN_TOKENS, len(text))
        self._own = None if others else PhraseIndex(max_bytes=tokens * BYTES_PER_TOKEN)
        self._calibration = Calibration()

    def offers(self, position: int, width: int) -> Sequence[int]:
        """The most likely children by blended counts."""
        context = self._text[max(0, position - MAX_CONTEXT) : position]
        budget = DraftBudget(max_nodes=width, max_depth=1)
        tree = grow(
            context, budget, shared=self._others, own=self._own, calibration=self._calibration
        ).tree
        return tree.token_ids

    def commit(self, start: int, end: int) -> None:
        """Indexes own text; the index of other texts stays as it is."""
        if self._own:
            before = self._text[max(0, start - MAX_CONTEXT) : start]
            self._own.extend(before, self._text[start:end])


class Recycled:
    """Token recycling: the target's most likely tokens after the previous occurrence of a token."""

    forwards = 0

    def __init__(
        self, text: Sequence[int], prompt_length: int, successors: Sequence[Sequence[int]]
    ) -> None:
        self._text = text
        self._prompt_length = prompt_length
        self._successors = successors
        self._latest: dict[int, Sequence[int]] = {}

    def offers(self, position: int, width: int) -> Sequence[int]:
        """The recorded successors of the token before `position`."""
        return self._latest.get(self._text[position - 1], ())[:width]

    def commit(self, start: int, end: int) -> None:
        """Records the successors of the last token before a round and of its accepted tokens.

        Verdicts carry only these, and none for the prompt. `successors[i]` follows the token at
        `prompt_length - 1 + i`.
        """
        for position in range(max(start, self._prompt_length), end):
            before = position - 1
            self._latest[self._text[before]] = self._successors[position - self._prompt_length]


@torch.inference_mode()
def decode(
    model: LanguageModel, prompt: Sequence[int], sampling: SamplingParameters, tokens: int
) -> tuple[list[int], list[list[int]]]:
    """The prompt with its plain continuation, and the most likely successors at each step."""
    sampler = Sampler(sampling, model.vocabulary_size, model.device)
    slot = model.acquire()
    text, successors = list(prompt), []
    try:
        while len(text) < len(prompt) + tokens:
            new = text[slot.length :]
            (logits,) = model.forward([Forward(model, slot, new, logits_from=len(new) - 1)])
            successors.append(logits[0].topk(MAX_SUCCESSORS).indices.tolist())
            text += sampler.choose(logits, [len(text)], [[]])
    finally:
        model.cache.release(slot)
    return text, successors


@torch.inference_mode()
def logits_of(model: LanguageModel, text: Sequence[int]) -> Tensor:
    """Logits after every token of the text except the last, [tokens - 1, vocabulary]."""
    slot = model.acquire()
    try:
        (logits,) = model.forward([Forward(model, slot, text[:-1])])
    finally:
        model.cache.release(slot)
    return logits


@torch.inference_mode()
def rankings(
    model: LanguageModel, text: Sequence[int], sampling: SamplingParameters
) -> list[list[int]]:
    """A draft model's best tokens for every position of the text; empty for the first one."""
    sampler = Sampler(sampling, model.vocabulary_size, model.device)
    sampler.scale_temperature(DRAFT_TEMPERATURE)
    positions = range(1, len(text))
    best = sampler.best(logits_of(model, text), positions, [()] * len(positions), MAX_OFFERS)
    return [[], *best.token_ids]


def index_of(texts: Sequence[tuple[Sequence[int], int]]) -> PhraseIndex:
    """An index of other prompts' continuations; each text comes with the length of its prompt."""
    tokens = max(MIN_TOKENS, sum(len(text) for text, _ in texts))
    index = PhraseIndex(max_bytes=tokens * BYTES_PER_TOKEN)
    for text, prompt_length in texts:
        index.extend(text[:prompt_length], text[prompt_length:])
    return index
