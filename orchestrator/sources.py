"""Drafts from tokens alone: phrases, and the n-grams of a lookahead window on the target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from draftloop.lookahead import LookaheadParameters, LookaheadWindow
from draftloop.ngram_pool import NgramPool
from draftloop.pieces import run_at_once
from draftloop.tree import ROOT, DraftBudget, DraftTree, TokenSource
from draftloop.tree_builder import TreeBuilder
from orchestrator.outcome import RoundOutcome
from phrase_store.session import PhraseSession

# Probability that a pooled n-gram's next token is the target's: a rough guess, for figures only.
NGRAM_ESTIMATE = 0.4
# Prompt tokens indexed in one step, which takes some tenths of a millisecond.
PIECE_TOKENS = 128


class Source(Protocol):
    """Drafts from tokens alone, in microseconds."""

    def index_steps(self) -> Iterator[None]:
        """Indexes the prompt, one piece per step; the first draft indexes whatever is left."""

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        """A draft that continues the committed tokens."""

    def observe(self, outcome: RoundOutcome) -> None:
        """Learns from the tokens and the verdict of a round."""


class PhraseSource:
    """`prompt_lookup`, and the free source of other strategies: the likeliest phrases."""

    def __init__(self, phrases: PhraseSession, max_leaves: int | None = None) -> None:
        self._phrases = phrases
        self._max_leaves = max_leaves

    def index_steps(self) -> Iterator[None]:
        """Indexes the prompt, one piece per step."""
        return self._phrases.index_steps()

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        """A tree of at most `max_leaves` branches."""
        return self._phrases.propose(committed, budget, max_leaves=self._max_leaves)

    def observe(self, outcome: RoundOutcome) -> None:
        """Indexes the new tokens, and records which nodes of the last proposal were right."""
        tokens = outcome.new_token_ids
        self._phrases.judge(tokens)
        self._phrases.extend(outcome.context, tokens)


class LookaheadSource:
    """`lookahead`: window and pooled n-grams in one forward of the target (2402.02057).

    `index_steps` pools the n-grams of `text` piece by piece; the first draft pools what is left.
    No n-gram continues after one of `stop_token_ids`.
    """

    def __init__(
        self,
        parameters: LookaheadParameters,
        text: Sequence[int],
        stop_token_ids: Collection[int] = (),
    ) -> None:
        self._parameters = parameters
        self._window = LookaheadWindow(parameters, text)
        self._pool = NgramPool(parameters.ngram, parameters.pool_size, stop_token_ids)
        self._reading = self._read(tuple(text))
        self._placed = DraftTree()

    def index_steps(self) -> Iterator[None]:
        """Pools the prompt's n-grams, one piece per step."""
        return self._reading

    def _read(self, text: Sequence[int]) -> Iterator[None]:
        for start in range(0, len(text), PIECE_TOKENS):
            self._pool.extend(text[start : start + PIECE_TOKENS])
            yield

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        """The n-grams that follow the last token, merged into a tree, and the window.

        If the budget has no room for both, up to half of it is kept for the window, which is where
        new n-grams come from.
        """
        run_at_once(self._reading)
        depth, nodes = budget.max_depth, budget.max_nodes
        builder = self._ngrams(committed[-1], depth, nodes)
        ngram_nodes = nodes - self._window.reserved(depth, nodes)
        if len(builder) > ngram_nodes:
            builder = self._ngrams(committed[-1], depth, ngram_nodes)
        self._window.place(builder, depth, nodes - len(builder))
        self._placed = builder.build()
        return self._placed

    def _ngrams(self, first: int, max_depth: int, max_nodes: int) -> TreeBuilder:
        """N-grams that follow `first`, at most as many as fit if they share no nodes."""
        parameters, builder = self._parameters, TreeBuilder()
        max_ngrams = min(parameters.candidates, max_nodes // (parameters.ngram - 1))
        for continuation in self._pool.candidates(first, max_ngrams):
            fitting = continuation[:max_depth]
            builder.add_chain(ROOT, fitting, NGRAM_ESTIMATE, TokenSource.LOOKAHEAD)
        return builder

    def observe(self, outcome: RoundOutcome) -> None:
        """Advances the window by the target's predictions, and pools the n-grams that result."""
        run_at_once(self._reading)
        predictions = outcome.verdict.node_predictions
        if outcome.draft is self._placed and len(predictions) == len(outcome.draft) > 0:
            self._pool.insert(self._window.advance(predictions))
        self._pool.extend(outcome.new_token_ids)
