"""Penalties for tokens that occurred before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from draftloop.request import SamplingParameters


class Penalties:
    """The penalties of one session.

    The repetition penalty counts prompt and output, the others the output only. Only the logits of
    tokens seen so far are recomputed: of a vocabulary of 150,000, a text uses about a thousand.
    """

    def __init__(
        self, parameters: SamplingParameters, vocabulary_size: int, device: torch.device
    ) -> None:
        self._parameters = parameters
        self._in_prompt = torch.zeros(vocabulary_size, dtype=torch.bool, device=device)
        self._output_counts = torch.zeros(vocabulary_size, device=device)
        # Tokens of prompt, output and drafts, and the index of each in `_seen`.
        self._seen = torch.empty(0, dtype=torch.long, device=device)
        self._places: dict[int, int] = {}

    def observe_prompt(self, token_ids: Sequence[int]) -> None:
        """Adds the prompt's tokens."""
        if token_ids:
            self._see(token_ids)
            self._in_prompt[self._tensor(token_ids)] = True

    def observe_output(self, token_ids: Sequence[int]) -> None:
        """Counts tokens that were committed after the prompt."""
        if token_ids:
            self._see(token_ids)
            ones = torch.ones(len(token_ids), device=self._seen.device)
            self._output_counts.index_add_(0, self._tensor(token_ids), ones)

    def applied(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """The logits [rows, vocabulary] with penalties; a row's drafted path counts as output."""
        self._see(token for path in paths for token in path)
        seen_logits = logits[:, self._seen]
        return logits.index_copy(1, self._seen, self._penalized(seen_logits, self._counts(paths)))

    def _counts(self, paths: Sequence[Sequence[int]]) -> Tensor:
        """[rows, seen]: how often each seen token occurs in the output and the row's path."""
        counts = self._output_counts[self._seen].repeat(len(paths), 1)
        rows = [row for row, path in enumerate(paths) for _ in path]
        if rows:
            places = [self._places[token] for path in paths for token in path]
            ones = torch.ones(len(rows), device=counts.device)
            where = self._tensor(rows), self._tensor(places)
            counts.index_put_(where, ones, accumulate=True)
        return counts

    def _penalized(self, logits: Tensor, counts: Tensor) -> Tensor:
        parameters, in_output = self._parameters, counts > 0
        factor = parameters.repetition_penalty
        repeated = torch.where(logits > 0, logits / factor, logits * factor)
        new = torch.where(self._in_prompt[self._seen] | in_output, repeated, logits)
        new = new - parameters.frequency_penalty * counts
        return new - parameters.presence_penalty * in_output

    def _see(self, token_ids: Iterable[int]) -> None:
        fresh = [token for token in dict.fromkeys(token_ids) if token not in self._places]
        if fresh:
            places = range(len(self._places), len(self._places) + len(fresh))
            self._places.update(zip(fresh, places, strict=True))
            self._seen = torch.cat([self._seen, self._tensor(fresh)])

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self._seen.device)
