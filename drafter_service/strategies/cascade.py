"""Cascade Speculative Drafting: drafters in a row, each reviewing cheaper ones (2312.11462)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from drafter_service.economy import Economy
from drafter_service.review import review
from drafter_service.session import DrafterSession
from drafter_service.strategies.chain import Chain, Drafted
from draftloop.calibration import Calibration, correct
from draftloop.max_gram import MaxGram
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.speculation import CASCADE
from draftloop.tree import DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict

# Of the text, read by max-gram in one go: about a millisecond.
PIECE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Level:
    """A draft model of the cascade, its slot, what its reviews cost and bring in, and how far it
    is to be believed: a larger model's tokens more than a smaller one's.
    """

    model: LanguageModel
    slot: Slot
    economy: Economy
    calibration: Calibration


class Cascade(Chain):
    """`cascade`: draft models, larger ones first, and max-gram behind them.

    Vertical: no model writes token by token. It reviews in one forward what those behind it
    propose, keeps what it would have said itself and adds its own next token.
    Horizontal: by row 0 of the matrix the larger ones write the early tokens of the draft.
    Max-gram reads the text beside the models: a long one takes a second.
    """

    name = CASCADE

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._levels = [
            Level(
                each.model, each.slot, Economy(each.model.forward_seconds),
                each.experience.calibration,
            )
            for each in session.levels()
        ]  # fmt: skip
        self._last_writers: list[int] = []
        parameters = session.request.cascade
        self._matrix = parameters.matrix_for("cascade", len(self._levels))
        self._leniency = parameters.leniency
        self._max_gram = MaxGram((), session.stop_token_ids)

    def reading(self) -> Iterator[None]:
        """Max-gram's."""
        for end in range(PIECE_TOKENS, len(self.session.committed) + PIECE_TOKENS, PIECE_TOKENS):
            self._read(end)
            yield

    def _read(self, end: int | None = None) -> None:
        """Max-gram reads on, up to so many tokens of the text."""
        self._max_gram.extend(self.session.committed[len(self._max_gram) : end])

    def prefill(self, *, whole: bool = True) -> Task[None]:
        """The same through every model that the matrix uses."""
        used = [0]
        for index, level in enumerate(self._levels, start=1):
            if any(self._matrix[row][index - 1] for row in used):
                used.append(index)
                yield from self.prefill_of(level.model, level.slot, whole=whole)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """The chain of row 0; every model keeps keys and values of what was drafted so far."""
        budget = self.session.within_limits(budget)
        limit = self.chain_depth(budget)
        yield from self.prefill(whole=False)
        self._read()
        self.proposed_nodes = 0
        drafted = Drafted()
        end = yield from self._row(0, drafted, limit, budget)
        if len(drafted) >= limit and not drafted.ended:
            end = DraftEnd.NODES if limit == budget.max_nodes else DraftEnd.DEPTH
        self.end = end
        draft, self._last_writers = drafted.tree(), drafted.writers
        return self.remembered(draft, drafted.scores, draft.depths())

    def calibrate(
        self, draft: DraftTree, scores: Sequence[float], verdict: Verdict, runs: Sequence[int]
    ) -> None:
        """Each model by its own tokens."""
        for index, level in enumerate(self._levels):
            nodes = {n for n, writer in enumerate(self._last_writers) if writer == index}
            level.calibration.observe(draft, scores, verdict, runs, nodes)

    def _row(self, row: int, path: Drafted, limit: int, budget: DraftBudget) -> Task[DraftEnd]:
        """The horizontal cascade: adds what this row says to the path, up to `limit` tokens of it.

        The counts add up, as in the paper's algorithm 1: of what a larger drafter wrote beyond its
        own, or left unwritten, the next ones have so much less, or more, to do.
        """
        start, end = len(path), DraftEnd.NODES
        counts = self._matrix[row]
        for index, (count, total) in enumerate(zip(counts, accumulate(counts), strict=True)):
            depth = min(start + total, limit)
            if not count or len(path) >= depth or path.ended:
                continue
            if index < len(self._levels):
                end = yield from self._write(index, row, path, depth, limit, budget)
            else:
                least = 0.0 if row else budget.least_path_probability
                end = self._copy(path, depth, least)
        return DraftEnd.TEXT if path.ended else end

    def _write(
        self, index: int, row: int, path: Drafted, depth: int, limit: int, budget: DraftBudget
    ) -> Task[DraftEnd]:
        """The vertical cascade: a model writes by reviews until the path has `depth` tokens.

        The last review may reveal more of them, up to `limit`.
        """
        level = self._levels[index]
        while len(path) < depth and not path.ended:
            # Whether to draft at all was decided by who asked.
            asked = row == 0 and not len(path)
            if not asked and not level.economy.pays(path.reach, budget):
                return DraftEnd.DRAFT_COST
            began = time.perf_counter()
            proposal = path.copy()
            yield from self._row(index + 1, proposal, limit - 1, budget)
            guesses = proposal.tree(len(path))
            logits = yield self._forward(level, path.token_ids, guesses.token_ids)
            verdict, scores = review(self.session, logits, path.token_ids, guesses, self._leniency)
            gain = self.adopt(path, verdict, scores, level.calibration, index)
            self.proposed_nodes += len(scores)
            level.economy.observe(time.perf_counter() - began, gain, first=asked)
        return DraftEnd.NODES

    def _copy(self, path: Drafted, depth: int, least: float) -> DraftEnd:
        """Max-gram writes up to `depth` tokens, none that is reached with less than `least`."""
        calibration, source = self.session.experience.calibration, TokenSource.PROMPT_LOOKUP
        for token, score in self._max_gram.propose(path.token_ids, depth - len(path)):
            estimate = correct(calibration, source, score, len(path) + 1)
            if path.reach * estimate < least:
                return DraftEnd.VERIFY_COST
            path.add(token, score, estimate, source)
            path.ended = token in self.session.stop_token_ids
        return DraftEnd.NODES if len(path) >= depth else DraftEnd.TEXT

    def _forward(self, level: Level, path: Sequence[int], guesses: Sequence[int]) -> Forward:
        """What the level's slot lacks of the path, at least its last token, and the guesses.

        Its pending rows are what it read last: the beginning that is still on the path is kept.
        """
        slot = level.slot
        tail = self.session.committed[slot.length :]
        kept = 0
        for pending, token in zip(slot.pending_token_ids, path[:-1], strict=False):
            if pending != token:
                break
            kept += 1
        slot.drop_pending(kept)
        token_ids = [*path[kept:], *guesses]
        parents = range(kept - 1, kept - 1 + len(token_ids))
        first = len(tail) + len(path) - kept - 1
        return Forward(level.model, slot, tail, token_ids, parents, logits_from=first)
