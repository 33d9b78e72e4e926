"""Ouroboros: phrases, from verdicts and history, help to draft and lengthen (2402.13720)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from torch import Tensor

from drafter_service.candidates import Candidates
from drafter_service.economy import Economy
from drafter_service.review import review
from drafter_service.session import DrafterSession
from drafter_service.strategies.chain import Chain, Drafted
from draftloop.lookahead import LookaheadWindow
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.prepared import Passes
from draftloop.speculation import OUROBOROS
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree, Verdict
from draftloop.tree_builder import TreeBuilder
from phrase_store.session import PhraseSession


class Ouroboros(Chain):
    """`ouroboros`: the paper's four parts, each with its own switch in the request.

    Drafting by phrases (3.1): one forward of the draft model also runs a lookahead window and the
    phrases that may follow the chain; the chain grows by the longest phrase that the draft model
    agrees with. Lengthening (3.2): the K best phrases after the chain's end are verified with it,
    as a tree. Verification (3.3) and history (3.4) fill the session's phrases.
    """

    name = OUROBOROS

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._economy = Economy(session.model.forward_seconds)
        self._alone = Candidates(session, children=1)
        self._parameters = session.request.ouroboros
        self._phrases: PhraseSession | None = session.phrases
        self._lengthens = self._phrases is not None and self._parameters.lengthen
        self._guessing = session.experience.guessing
        self._window: LookaheadWindow | None = None
        if self._phrases is not None and self._parameters.draft_by_phrases:
            self._window = LookaheadWindow(self._parameters.lookahead, session.committed)

    def index_steps(self) -> Iterator[None]:
        """Indexes the request's own text in its phrases."""
        return iter(()) if self._phrases is None else self._phrases.index_steps()

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Adds the new tokens to the session's own text, and phrases from the verdict."""
        super().observe(new_token_ids, verdict)
        if self._phrases is None:
            return
        start = len(self.session.committed) - len(new_token_ids)
        context = self.session.committed[max(0, start - MAX_CONTEXT) : start]
        self._phrases.extend(context, new_token_ids)
        if verdict is not None and verdict.judges(self._last_draft):
            self._phrases.learn(context, self._last_draft, verdict)
            count = len(verdict.emitted_token_ids)
            context, new_token_ids = [*context, *new_token_ids[:count]], new_token_ids[count:]
        if new_token_ids:  # committed by rounds that were drafted elsewhere
            emitted = tuple(new_token_ids)
            committed = Verdict(
                accepted_nodes=(), emitted_token_ids=emitted, root_prediction=emitted[0]
            )
            self._phrases.learn(context, EMPTY_TREE, committed)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Drafts a chain, at least one token per draft forward, and phrases after its end.

        Keys and values of accepted tokens stay in the slot.
        """
        budget = self.session.within_limits(budget)
        depth = self.chain_depth(budget)
        yield from self.prefill(whole=False)
        drafted = yield from self._draft_chain(depth, budget)
        self.proposed_nodes = len(drafted)
        drafted.cut(depth)
        draft, scores, runs = self._lengthened(drafted, budget)
        chain = range(1, len(drafted) + 1)
        return self.store_draft(draft, drafted.scores + scores, [*chain, *runs])

    def _draft_chain(self, depth: int, budget: DraftBudget) -> Task[Drafted]:
        """The chain, by forwards with guesses or without, whichever drafts more tokens per second.

        Whole drafts are compared, as a draft's first forward takes longer than its others.
        """
        drafted, draft_began = Drafted(), time.perf_counter()
        guesses_phrases = self._window is not None and self._guessing.should_guess()
        while self._continues(drafted, depth, budget):
            known, began = len(drafted), time.perf_counter()
            if guesses_phrases or not (yield from self._extend_alone(drafted, depth, budget)):
                guesses = self._next_guesses(drafted) if guesses_phrases else EMPTY_TREE
                logits = yield self._next_forward(drafted.token_ids, guesses)
                gain = self._take(drafted, guesses, logits)
                self._economy.observe(time.perf_counter() - began, gain, first=not known)
            if len(drafted) == known:  # the logits are NaN: nothing can be drafted
                break
        seconds = time.perf_counter() - draft_began
        self._guessing.observe(guesses_phrases, len(drafted), seconds)
        return drafted

    def chain_depth(self, budget: DraftBudget) -> int:
        """Leaves a third of the nodes to lengthening."""
        most = super().chain_depth(budget)
        return min(most, max(1, 2 * most // 3)) if self._lengthens else most

    def _continues(self, drafted: Drafted, depth: int, budget: DraftBudget) -> bool:
        if len(drafted) >= depth or drafted.ended:
            ends_text = drafted.ended and len(drafted) <= depth
            self.end = DraftEnd.TEXT if ends_text else DraftEnd.DEPTH
            return False
        # The first forward is always run: the orchestrator has decided that drafting pays.
        self.end = DraftEnd.DRAFT_COST
        return not len(drafted) or self._economy.pays(drafted.reach, budget)

    def _extend_alone(self, drafted: Drafted, depth: int, budget: DraftBudget) -> Task[bool]:
        """Extends the chain without guesses in one compiled call; False if that is impossible."""
        passes = self._passes(drafted, depth, budget)
        if passes is None:
            return False
        yield passes
        for token, share, estimate in self._alone.chain(len(drafted)):
            drafted.add(token, share, estimate)
        drafted.ended = not self.session.stop_token_ids.isdisjoint(drafted.token_ids[-1:])
        return True

    def _passes(self, drafted: Drafted, depth: int, budget: DraftBudget) -> Passes | None:
        """All remaining forwards, without guesses, as one call; None if that is impossible."""
        if self.session.prepared is None:
            return None
        alone = self._alone
        alone.clear()
        alone.plan(budget, together=1, most=depth, max_depth=depth, least=0.0)
        alone.begin_after(drafted.tree())
        return alone.passes(self._economy)

    def _next_guesses(self, drafted: Drafted) -> DraftTree:
        """The guesses for the draft model's next forward: phrases after the chain, and the window.

        If there is no room for both, the window gets half of it, since it yields new phrases.
        """
        if self._window is None or self._phrases is None:
            return EMPTY_TREE
        session, lookahead = self.session, self._parameters.lookahead
        room = session.model.options.max_draft_nodes - len(drafted) - 1
        deepest = session.room - len(drafted)
        if room < 1 or deepest < 1:
            return EMPTY_TREE
        left = room - self._window.reserved(deepest, room)
        most = min(left, lookahead.candidates * (lookahead.ngram - 1))
        guess_budget = DraftBudget(max_nodes=most, max_depth=min(deepest, most))
        phrases = self._phrases.propose(
            session.committed,
            guess_budget,
            drafted=drafted.token_ids,
            max_leaves=lookahead.candidates,
        )
        builder = TreeBuilder(phrases)
        self._window.place(builder, deepest, room - len(builder))
        return builder.build()

    def _next_forward(self, token_ids: list[int], guesses: DraftTree) -> Forward:
        """The forward over the tokens not run yet, with the guesses as children of the last."""
        session = self.session
        if not token_ids:
            tail = session.committed[session.slot.length :]
            return Forward(
                session.model, session.slot, tail, guesses.token_ids, guesses.parents,
                logits_from=len(tail) - 1,
            )  # fmt: skip
        last = len(token_ids) - 1
        parents = [last if parent == ROOT else last + 1 + parent for parent in guesses.parents]
        return Forward(
            session.model, session.slot, (),
            [token_ids[-1], *guesses.token_ids], [last - 1, *parents],
        )  # fmt: skip

    def _take(self, drafted: Drafted, guesses: DraftTree, logits: Tensor) -> float:
        """Appends the draft model's own tokens: one, and one more for each guess it agrees with.

        Returns how many of them are expected to be accepted, given that all before them are.
        """
        before = len(drafted)
        verdict, scores = review(self.session, logits, drafted.token_ids, guesses)
        calibration = self.session.experience.calibration
        gain = self.adopt(drafted, verdict, scores, calibration)
        if len(guesses):
            accepted = (before + node for node in verdict.accepted_nodes)
            self.session.slot.keep([*range(before), *accepted])
            self._learn_ngrams(verdict.node_predictions)
        return gain

    def _learn_ngrams(self, predictions: Sequence[int]) -> None:
        """Adds the window's n-grams to this request's phrases; they are not published.

        `predictions` are the draft model's tokens after every node of the last guesses.
        """
        if self._window is not None and self._phrases is not None:
            ngrams = self._window.advance(predictions)
            self._phrases.insert(Phrase(ngram[:1], ngram[1:], committed=False) for ngram in ngrams)

    def _lengthened(
        self, drafted: Drafted, budget: DraftBudget
    ) -> tuple[DraftTree, list[float], list[int]]:
        """Appends the K best phrases to the chain, as a tree.

        Returns the whole draft, and the raw scores and runs of the appended nodes.
        """
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
            max_leaves=self._parameters.lengthening_phrases,
        )
        builder = TreeBuilder(chain)
        builder.graft(len(chain) - 1, phrases)
        return builder.build(), self._phrases.last_scores, self._phrases.last_runs
