"""Cascade Speculative Drafting: drafters in order, each reviewing cheaper ones (2312.11462)."""

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

# Tokens that max-gram indexes in one step: about a millisecond.
PIECE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Level:
    """A draft model of the cascade, with its slot.

    `economy`: what its reviews cost and gain. `calibration`: how reliable its estimates are; a
    larger model's tokens are accepted more often than a smaller one's.
    """

    model: LanguageModel
    slot: Slot
    economy: Economy
    calibration: Calibration


class Cascade(Chain):
    """`cascade`: draft models, larger ones first, and max-gram last.

    Vertical: no model writes token by token. In one forward, each model reviews what the drafters
    after it propose, keeps the tokens that it would have chosen itself and adds its own next token.
    Horizontal: by row 0 of the matrix, the larger models write the early tokens of the draft.
    Max-gram indexes the text while the models prefill, since a long text takes a second.
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
        self._matrix = parameters.matrix_for(len(self._levels))
        self._leniency = parameters.leniency
        self._max_gram = MaxGram((), session.stop_token_ids)

    def index_steps(self) -> Iterator[None]:
        """Indexes the text for max-gram."""
        for end in range(PIECE_TOKENS, len(self.session.committed) + PIECE_TOKENS, PIECE_TOKENS):
            self._read(end)
            yield

    def _read(self, end: int | None = None) -> None:
        """Extends max-gram's index to the first `end` tokens of the text, or to all."""
        self._max_gram.extend(self.session.committed[len(self._max_gram) : end])

    def prefill(self, *, whole: bool = True) -> Task[None]:
        """Prefills every model that the matrix uses."""
        used = [0]
        for index, level in enumerate(self._levels, start=1):
            if any(self._matrix[row][index - 1] for row in used):
                used.append(index)
                yield from self.prefill_of(level.model, level.slot, whole=whole)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Drafts the chain of row 0; each model keeps keys and values of the tokens it has run."""
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
        return self.store_draft(draft, drafted.scores, draft.depths())

    def calibrate(
        self, draft: DraftTree, scores: Sequence[float], verdict: Verdict, runs: Sequence[int]
    ) -> None:
        """Calibrates each model by the tokens that it wrote."""
        for index, level in enumerate(self._levels):
            nodes = {n for n, writer in enumerate(self._last_writers) if writer == index}
            level.calibration.observe(draft, scores, verdict, runs, nodes)

    def _row(self, row: int, path: Drafted, limit: int, budget: DraftBudget) -> Task[DraftEnd]:
        """The horizontal cascade: extends the path by this row's drafters, up to `limit` tokens.

        The counts add up, as in the paper's algorithm 1: if a larger drafter wrote more, or fewer,
        tokens than its own count, the next ones write that many fewer, or more.
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
        """The vertical cascade: one model writes by reviews until the path has `depth` tokens.

        The last review may yield more tokens, up to `limit`.
        """
        level = self._levels[index]
        while len(path) < depth and not path.ended:
            # The first review is always run: the orchestrator has decided that drafting pays.
            is_first = row == 0 and not len(path)
            if not is_first and not level.economy.pays(path.reach, budget):
                return DraftEnd.DRAFT_COST
            began = time.perf_counter()
            proposal = path.copy()
            yield from self._row(index + 1, proposal, limit - 1, budget)
            guesses = proposal.tree(len(path))
            logits = yield self._forward(level, path.token_ids, guesses.token_ids)
            verdict, scores = review(self.session, logits, path.token_ids, guesses, self._leniency)
            gain = self.adopt(path, verdict, scores, level.calibration, index)
            self.proposed_nodes += len(scores)
            level.economy.observe(time.perf_counter() - began, gain, first=is_first)
        return DraftEnd.NODES

    def _copy(self, path: Drafted, depth: int, least: float) -> DraftEnd:
        """Max-gram extends the path up to `depth` tokens, while its reach is at least `least`."""
        calibration, source = self.session.experience.calibration, TokenSource.PROMPT_LOOKUP
        for token, score in self._max_gram.propose(path.token_ids, depth - len(path)):
            estimate = correct(calibration, source, score, len(path) + 1)
            if path.reach * estimate < least:
                return DraftEnd.VERIFY_COST
            path.add(token, score, estimate, source)
            path.ended = token in self.session.stop_token_ids
        return DraftEnd.NODES if len(path) >= depth else DraftEnd.TEXT

    def _forward(self, level: Level, path: Sequence[int], guesses: Sequence[int]) -> Forward:
        """The forward over the tokens of the path that the level's slot lacks, and the guesses.

        The path's last token is always run. The slot's pending rows are from the level's previous
        review; those that still match the beginning of the path are kept.
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
