"""Tokens that are banned at each place of one output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from draftloop.bans import Bans
from draftloop.runtime.choices import EXCLUDED


class Banned:
    """The bans of one session: tokens that may not follow the output and a drafted path."""

    def __init__(self, bans: Bans, vocabulary_size: int, device: torch.device) -> None:
        self._always_banned = _always_banned(bans, vocabulary_size).to(device)
        self._sequences = [sequence for sequence in bans.sequences if len(sequence) > 1]
        self._ends = bans.ends
        self._early = bans.min_tokens  # tokens still required before one of `ends` is allowed
        # The output's last tokens, as many as the longest sequence has before its last one.
        self._last: tuple[int, ...] = ()
        self._most = max((len(sequence) - 1 for sequence in self._sequences), default=0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is banned any more."""
        return self._early <= 0 and not self._sequences and not bool(self._always_banned.any())

    def observe(self, token_ids: Sequence[int]) -> None:
        """Appends tokens of the output."""
        self._early -= len(token_ids)
        if self._most:
            self._last = (*self._last, *token_ids)[-self._most :]

    def applied(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """The logits [rows, vocabulary] with -inf for tokens banned after each row's path."""
        left = logits.masked_fill(self._always_banned, EXCLUDED)
        for row, path in enumerate(paths):
            if banned := list(self._banned_after(path)):
                left[row, banned] = EXCLUDED
        return left

    def _banned_after(self, path: Sequence[int]) -> Iterable[int]:
        if len(path) < self._early:
            yield from self._ends
        text = (*self._last, *path)
        for *before, last in self._sequences:
            if text[-len(before) :] == tuple(before):
                yield last


def _always_banned(bans: Bans, vocabulary_size: int) -> Tensor:
    """bool [vocabulary]: the tokens that are banned everywhere."""
    mask = torch.full((vocabulary_size,), bool(bans.allowed))
    mask[list(bans.allowed)] = False
    mask[[sequence[0] for sequence in bans.sequences if len(sequence) == 1]] = True
    return mask
