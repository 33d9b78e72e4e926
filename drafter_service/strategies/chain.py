"""Speculative decoding: the draft model writes a chain (Leviathan et al. 2211.17192, section 2).

It chooses with the target's own noise, so its token is the target's as often as the two models'
perturbed arg max agree (arXiv 2408.07978).
"""

from __future__ import annotations

from torch import Tensor

from drafter_service.strategies.base import Strategy
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.prefill import prefill
from draftloop.tree import ROOT, DraftBudget, DraftTree, TokenSource


class Chain(Strategy):
    """`speculative`: a chain as deep as the budget, one draft forward per token."""

    name = "speculative"

    def prefill(self) -> Task[None]:
        """Runs the prompt, but for its last token."""
        session = self.session
        chunk = session.prefill_chunk_tokens
        yield from prefill(session.model, session.slot, session.committed, chunk_tokens=chunk)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """The chain; keys and values of what was drafted ahead and came true are kept."""
        budget = self.session.within_limits(budget)
        depth = min(budget.max_nodes, budget.max_depth)
        yield from self.prefill()
        token_ids: list[int] = []
        estimates: list[float] = []
        while len(token_ids) < depth:
            logits = yield self._next_forward(token_ids)
            token, estimate = self._choose(logits, token_ids)
            token_ids.append(token)
            estimates.append(estimate)
            if token in self.session.model.stop_token_ids:
                break  # nothing is ever emitted after a stop token
        return DraftTree.chain(token_ids, TokenSource.DRAFT_MODEL, estimates)

    def _next_forward(self, token_ids: list[int]) -> Forward:
        session = self.session
        if not token_ids:
            tail = session.committed[session.slot.length :]
            return Forward(session.model, session.slot, tail, logits_from=len(tail) - 1)
        parent = len(token_ids) - 2
        return Forward(session.model, session.slot, (), token_ids[-1:], (max(parent, ROOT),))

    def _choose(self, logits: Tensor, path: list[int]) -> tuple[int, float]:
        """The token after committed text and path, and its probability in the draft model."""
        session = self.session
        position = len(session.committed) + len(path)
        sampler, greedy = session.sampler, session.request.sampling.greedy
        shaped = sampler.shape(logits, [path])
        token = int(sampler.perturbed(shaped, [position])[0].argmax())
        law = logits[0] if greedy else shaped[0]
        return token, float((law[token] - law.logsumexp(0)).exp())
