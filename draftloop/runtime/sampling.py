"""Choosing tokens: bias, penalties, bans, grammar, temperature, filters, then noise and arg max.

The token at a position is argmax(log p + G), with Gumbel noise G from `noise.py`. This samples
exactly from p, and the token depends on seed, text and model only (arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftloop.request import SamplingParameters
from draftloop.runtime import cpu_choice
from draftloop.runtime.bans import Banned
from draftloop.runtime.choices import Choices
from draftloop.runtime.cutting import Cuts
from draftloop.runtime.filters import Filters
from draftloop.runtime.grammars import Follower
from draftloop.runtime.noise import GumbelNoise
from draftloop.runtime.penalties import Penalties


class Sampler:
    """Chooses the tokens of one session; it must be given all committed tokens (`observe_...`).

    `temperature`: the temperature in use, the request's own until `scale_temperature` lowers it.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        vocabulary_size: int,
        device: torch.device,
        grammar: Follower | None = None,
    ) -> None:
        self.parameters = parameters
        self.temperature = parameters.temperature
        self._noise = GumbelNoise(parameters.seed, vocabulary_size, device)
        self._bias: Tensor | None = None
        if parameters.logit_bias:
            self._bias = torch.zeros(vocabulary_size, device=device)
            token_ids, biases = zip(*parameters.logit_bias, strict=True)
            self._bias[list(token_ids)] = torch.tensor(biases, device=device)
        self._penalties: Penalties | None = None
        if parameters.penalized:
            self._penalties = Penalties(parameters, vocabulary_size, device)
        self._banned: Banned | None = None
        if parameters.bans.any:
            self._banned = Banned(parameters.bans, vocabulary_size, device)
        self._grammar = grammar
        self._filters = Filters(parameters, vocabulary_size)

    def scale_temperature(self, factor: float) -> None:
        """Sets the temperature to `factor` times the request's; for draft models.

        Top-k, top-p and min-p still apply at the request's own temperature.
        """
        self.temperature = factor * self.parameters.temperature

    def observe_prompt(self, token_ids: Sequence[int]) -> None:
        """Adds the prompt's tokens to the penalties' counts."""
        if self._penalties is not None:
            self._penalties.observe_prompt(token_ids)

    def observe_output(self, token_ids: Sequence[int]) -> None:
        """Updates penalties, bans and grammar with tokens committed after the prompt."""
        if self._penalties is not None:
            self._penalties.observe_output(token_ids)
        if self._banned is not None:
            self._banned.observe(token_ids)
            self._banned = None if self._banned.is_empty else self._banned
        if self._grammar is not None:
            self._grammar.observe(token_ids)

    @property
    def is_plain(self) -> bool:
        """Whether temperature, filters and noise alone determine the choice."""
        return self._bias is None and not self.depends_on_path

    @property
    def is_plain_except_grammar(self) -> bool:
        """Whether it is `is_plain`, or compiled code may choose before `apply_grammar`."""
        without = self._bias is None and self._penalties is None and self._banned is None
        return without and (self._grammar is None or not self.parameters.filtered)

    @property
    def depends_on_path(self) -> bool:
        """Whether the choice depends on previous tokens other than through the model's logits."""
        return not (self._penalties is None and self._banned is None and self._grammar is None)

    @property
    def cuts(self) -> Cuts:
        """The filters' parameters for compiled code."""
        return self._filters.cuts

    def noise(self, start: int, count: int) -> list[Tensor]:
        """Noise of `count` positions from `start` on, float32 [vocabulary] each; [] if greedy."""
        return [] if self.parameters.greedy else self._noise.rows(range(start, start + count))

    def choose(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> list[int]:
        """The chosen token of every row.

        logits: float32 [rows, vocabulary]; a row predicts the token at `positions[row]`, after the
        committed text followed by `paths[row]`. With a grammar see `apply_grammar`.
        """
        return self.apply_grammar(self._chosen(logits, positions, paths), logits, positions, paths)

    def apply_grammar(
        self,
        token_ids: list[int],
        logits: Tensor,
        positions: Sequence[int],
        paths: Sequence[Sequence[int]],
    ) -> list[int]:
        """Applies the grammar to tokens that were chosen without it; changes and returns the list.

        Only the rows on the accepted path are corrected, which saves most of the work. The other
        rows keep their choices without the grammar, which at most become phrases. Without filters,
        a chosen token that is allowed stays chosen, as excluding others cannot change the arg max.
        """
        if self._grammar is None:
            return token_ids
        rows = {tuple(path): row for row, path in enumerate(paths)}
        grammar, path = self._grammar, tuple[int, ...]()
        while (row := rows.get(path)) is not None:
            if self.parameters.filtered or not grammar.allows(token_ids[row], path):
                kept = grammar.applied(logits[row : row + 1], [path])
                (token_ids[row],) = self._chosen(kept, positions[row : row + 1], [path])
                if not grammar.allows(token_ids[row], path):  # NaN, or after the grammar's end
                    break
            path = (*path, token_ids[row])
        return token_ids

    def _chosen(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> list[int]:
        """The chosen tokens, without regard to the grammar."""
        if cpu_choice.fits(logits):
            chosen = cpu_choice.best(*self._choice_arguments(logits, positions, paths), 1)
            return [tokens[0] for tokens in chosen]
        likeliest: list[int] = self._scores(logits, positions, paths).argmax(dim=-1).tolist()
        return likeliest

    def best(
        self,
        logits: Tensor,
        positions: Sequence[int],
        paths: Sequence[Sequence[int]],
        count: int = 1,
    ) -> Choices:
        """The `count` best tokens of every row, the first as by `choose`, with their scores."""
        logits = self._allowed(logits, paths)
        if not cpu_choice.fits(logits):
            scores = self._scores(logits, positions, paths)
            return Choices.from_scores(scores, min(count, scores.shape[-1]))
        return cpu_choice.choose(*self._choice_arguments(logits, positions, paths), count)

    def _choice_arguments(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Sequence[Tensor], float]:
        """The logits, noise and temperature for `cpu_choice`."""
        parameters = self.parameters
        if parameters.greedy:
            return self._shape(logits, paths), (), 1.0
        noise = self._noise.rows(positions)
        kept = self._filters.applied(self._adjusted(logits, paths))
        return kept, noise, self.temperature

    def scores(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:
        """The scores that `choose` maximises: log p + G up to a constant per row; greedy: no G."""
        return self._scores(self._allowed(logits, paths), positions, paths)

    def _scores(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:
        shaped = self._shape(logits, paths)
        return shaped if self.parameters.greedy else shaped + self._noise.at(positions)

    def prepare(self, start: int, count: int) -> None:
        """Computes the noise of `count` positions from `start` on, before `choose` needs it."""
        if not self.parameters.greedy:
            self._noise.prepare(range(start, start + count))

    def shape(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Unnormalised log-probabilities with everything but the noise; excluded tokens -inf."""
        return self._shape(self._allowed(logits, paths), paths)

    def _allowed(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """The logits with -inf for tokens that the grammar does not allow."""
        return logits if self._grammar is None else self._grammar.applied(logits, paths)

    def _shape(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        parameters, logits = self.parameters, self._adjusted(logits, paths)
        if parameters.greedy:
            return logits
        logits = self._filters.applied(logits)
        if self.temperature != 1:
            # Relative to the maximum, so that a tiny temperature cannot overflow to +inf.
            logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        return logits

    def _adjusted(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """The logits with bias and penalties, and -inf for banned tokens."""
        if self._bias is not None:
            logits = logits + self._bias
        if self._penalties is not None:
            logits = self._penalties.applied(logits, paths)
        return logits if self._banned is None else self._banned.applied(logits, paths)


def likeliest(logits: Tensor, count: int) -> list[list[int]]:
    """The tokens with the `count` greatest logits of every row, best first."""
    count = min(count, logits.shape[-1])
    if cpu_choice.fits(logits):
        return cpu_choice.best(logits, (), 1.0, count)
    best: list[list[int]] = logits.topk(count, dim=-1).indices.tolist()
    return best
