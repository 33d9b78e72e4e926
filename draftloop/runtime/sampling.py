"""Choosing tokens: bias, penalties, bans, grammar, temperature, filters, then noise and arg max.

Sample, then match: the token at a position is argmax(log p + G) with G from `noise.py`, so p's law
is kept exactly and nothing but (seed, text, model) decides (arXiv 2408.07978).
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
    """Chooses the tokens of one session, whose text it follows.

    `heat`: the temperature that scores are taken at, the request's until it is cooled.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        vocabulary_size: int,
        device: torch.device,
        grammar: Follower | None = None,
    ) -> None:
        self.parameters = parameters
        self.heat = parameters.temperature
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

    def cool(self, part: float) -> None:
        """From now on takes scores at this part of the request's temperature.

        What is cut off is cut off at the request's own.
        """
        self.heat = part * self.parameters.temperature

    def observe_prompt(self, token_ids: Sequence[int]) -> None:
        """Counts in the prompt."""
        if self._penalties is not None:
            self._penalties.observe_prompt(token_ids)

    def observe_output(self, token_ids: Sequence[int]) -> None:
        """Counts in tokens that were committed after the prompt."""
        if self._penalties is not None:
            self._penalties.observe_output(token_ids)
        if self._banned is not None:
            self._banned.observe(token_ids)
            self._banned = None if self._banned.over else self._banned
        if self._grammar is not None:
            self._grammar.observe(token_ids)

    @property
    def plain(self) -> bool:
        """Whether nothing but temperature, filters and noise decides."""
        return self._bias is None and not self.follows_paths

    @property
    def plain_but_for_grammar(self) -> bool:
        """Whether it is, or what compiled code chooses may be `held` to the grammar."""
        without = self._bias is None and self._penalties is None and self._banned is None
        return without and (self._grammar is None or not self.parameters.filtered)

    @property
    def follows_paths(self) -> bool:
        """Whether what comes next depends on the tokens before it beside what the model says."""
        return not (self._penalties is None and self._banned is None and self._grammar is None)

    @property
    def cuts(self) -> Cuts:
        """What compiled code cuts off by."""
        return self._filters.cuts

    def noise(self, start: int, count: int) -> list[Tensor]:
        """float32 [vocabulary] for every position from `start` on; none where it is greedy."""
        return [] if self.parameters.greedy else self._noise.rows(range(start, start + count))

    def choose(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> list[int]:
        """The token at every position.

        logits: float32 [rows, vocabulary], each row what the model says of `positions[row]`, which
        comes after the committed text and then `paths[row]`. With a grammar see `held`.
        """
        return self.held(self._chosen(logits, positions, paths), logits, positions, paths)

    def held(
        self,
        token_ids: list[int],
        logits: Tensor,
        positions: Sequence[int],
        paths: Sequence[Sequence[int]],
    ) -> list[int]:
        """Puts in place, among tokens chosen as if there were no grammar, those that it changes.

        Of a tree's rows only those that the text comes to, which is most of the work spared: the
        others stay what the model would say if anything went, and become phrases at most. Where
        nothing is filtered a token that is allowed is the one, since those that are not were worse.
        """
        if self._grammar is None:
            return token_ids
        rows = {tuple(path): row for row, path in enumerate(paths)}
        grammar, path = self._grammar, tuple[int, ...]()
        while (row := rows.get(path)) is not None:
            if self.parameters.filtered or not grammar.allows(token_ids[row], path):
                kept = grammar.applied(logits[row : row + 1], [path])
                (token_ids[row],) = self._chosen(kept, positions[row : row + 1], [path])
                if not grammar.allows(token_ids[row], path):  # NaN, or behind the end
                    break
            path = (*path, token_ids[row])
        return token_ids

    def _chosen(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> list[int]:
        """Without a grammar."""
        if cpu_choice.fits(logits):
            chosen = cpu_choice.best(*self._weighing(logits, positions, paths), 1)
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
        """What `choose` chooses and the runners-up, `count` tokens of a row, with their shares."""
        logits = self._allowed(logits, paths)
        if not cpu_choice.fits(logits):
            scores = self._scores(logits, positions, paths)
            return Choices.of(scores, min(count, scores.shape[-1]))
        return cpu_choice.choose(*self._weighing(logits, positions, paths), count)

    def _weighing(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Sequence[Tensor], float]:
        """Logits, noise and temperature that `cpu_choice` chooses by."""
        parameters = self.parameters
        if parameters.greedy:
            return self._shape(logits, paths), (), 1.0
        noise = self._noise.rows(positions)
        kept = self._filters.applied(self._weighed(logits, paths))
        return kept, noise, self.heat

    def scores(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:
        """What `choose` maximises, up to a constant per row: log p + G; greedy adds no noise."""
        return self._scores(self._allowed(logits, paths), positions, paths)

    def _scores(
        self, logits: Tensor, positions: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:
        shaped = self._shape(logits, paths)
        return shaped if self.parameters.greedy else shaped + self._noise.at(positions)

    def prepare(self, start: int, count: int) -> None:
        """Draws the noise of `count` positions from `start` on ahead of `choose`."""
        if not self.parameters.greedy:
            self._noise.prepare(range(start, start + count))

    def shape(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Unnormalised log-probabilities after everything but the noise; excluded ones -inf."""
        return self._shape(self._allowed(logits, paths), paths)

    def _allowed(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Without what the grammar does not allow."""
        return logits if self._grammar is None else self._grammar.applied(logits, paths)

    def _shape(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        parameters, logits = self.parameters, self._weighed(logits, paths)
        if parameters.greedy:
            return logits
        logits = self._filters.applied(logits)
        if self.heat != 1:
            # From the maximum down, so that a tiny temperature cannot overflow to +inf.
            logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.heat
        return logits

    def _weighed(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """With bias and penalties, and without what is banned."""
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
