"""Ouroboros: phrases for drafting, for longer drafts, from verdicts, from history (2402.13720)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drafter_service.economy import Choice
from drafter_service.session import DrafterSession
from drafter_service.strategies.chain import Chain, Drafted
from draftloop.lookahead import LookaheadWindow
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.speculation import OUROBOROS
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, Verdict
from draftloop.tree_builder import TreeBuilder
from phrase_store.session import PhraseSession


class Ouroboros(Chain):
    """`ouroboros`: the paper's four parts, each by the switch of its name in the request.

    Drafting by phrases (3.1): in one draft forward ride a lookahead window and the phrases that
    follow the chain; the chain grows by the longest phrase that the draft model agrees with.
    Lengthening (3.2): the K best phrases behind the chain's end are verified with it, as a tree.
    Verification (3.3) and history (3.4) fill the session's phrases.
    """

    name = OUROBOROS

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._parameters = session.request.ouroboros
        self._phrases: PhraseSession | None = session.phrases
        self._lengthens = self._phrases is not None and self._parameters.lengthen
        self._choice = Choice()
        self._guessed = False
        self._window: LookaheadWindow | None = None
        if self._phrases is not None and self._parameters.draft_by_phrases:
            self._window = LookaheadWindow(self._parameters.lookahead, session.committed)

    def reading(self) -> Iterator[None]:
        """That of the request's own phrases."""
        return iter(()) if self._phrases is None else self._phrases.reading()

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """The session's own text grows; what the verdict says becomes phrases."""
        super().observe(new_token_ids, verdict)
        if self._phrases is None:
            return
        start = len(self.session.committed) - len(new_token_ids)
        context = self.session.committed[max(0, start - MAX_CONTEXT) : start]
        self._phrases.extend(context, new_token_ids)
        draft = self._last_draft
        if verdict is None or not verdict.judges(draft):
            if not new_token_ids:
                return
            # of rounds that were drafted elsewhere what they committed
            emitted = tuple(new_token_ids)
            draft = EMPTY_TREE
            verdict = Verdict(
                accepted_nodes=(), emitted_token_ids=emitted, root_prediction=emitted[0]
            )
        self._phrases.learn(context, draft, verdict)

    def chain_depth(self, budget: DraftBudget) -> int:
        """A third of the nodes is left for lengthening."""
        most = super().chain_depth(budget)
        return min(most, max(1, 2 * most // 3)) if self._lengthens else most

    def beside(self, drafted: Drafted, budget: DraftBudget) -> DraftTree:
        """Phrases that follow the chain, and the window.

        Where there is no room for both, the window has half of it: new phrases come from there.
        """
        self._guessed = False
        if self._window is None or self._phrases is None or not self._choice.takes_first():
            return EMPTY_TREE
        self._guessed = True
        session, lookahead = self.session, self._parameters.lookahead
        room = session.model.options.max_draft_nodes - len(drafted) - 1
        deepest = session.room - len(drafted)
        if room < 1 or deepest < 1:
            return EMPTY_TREE
        left = room - self._window.reserved(deepest, room)
        most = min(left, lookahead.candidates * (lookahead.ngram - 1))
        wanted = DraftBudget(max_nodes=most, max_depth=min(deepest, most))
        phrases = self._phrases.propose(
            session.committed, wanted, drafted=drafted.token_ids, most_leaves=lookahead.candidates
        )
        builder = TreeBuilder(phrases)
        self._window.place(builder, ROOT, deepest, room - len(builder))
        return builder.build()

    def took(self, tokens: int, seconds: float) -> None:
        """Guesses that ride along make a forward slower: they must make it longer too."""
        if self._window is not None:
            self._choice.observe(self._guessed, tokens, seconds)

    def after(self, predictions: Sequence[int]) -> None:
        """The window's n-grams become phrases of this request; nobody else is told of them."""
        if self._window is not None and self._phrases is not None:
            ngrams = self._window.advance(predictions)
            self._phrases.insert(Phrase(ngram[:1], ngram[1:], committed=False) for ngram in ngrams)

    def lengthened(
        self, drafted: Drafted, budget: DraftBudget
    ) -> tuple[DraftTree, list[float], list[int]]:
        """The chain, and behind its end the K best phrases merged to a tree."""
        chain = drafted.tree()
        if self._phrases is None or not self._lengthens or drafted.ended or not drafted.reach:
            return chain, [], []
        room = DraftBudget(
            max_nodes=budget.max_nodes - len(chain),
            max_depth=budget.max_depth - len(chain),
            least_path_probability=budget.least_path_probability / drafted.reach,
        )
        phrases = self._phrases.propose(
            self.session.committed,
            room,
            drafted=drafted.token_ids,
            most_leaves=self._parameters.lengthening_phrases,
        )
        builder = TreeBuilder(chain)
        builder.graft(len(chain) - 1, phrases)
        return builder.build(), self._phrases.last_scores, self._phrases.last_runs
