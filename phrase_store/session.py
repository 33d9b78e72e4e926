"""The phrases that one request uses: its own growing text, and those of its namespace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from draftloop.calibration import Calibration, cell_of, count
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.pieces import run_at_once
from draftloop.tree import ROOT, DraftBudget, DraftTree, TokenSource, Verdict
from phrase_store.harvest import harvest
from phrase_store.index import Grown, PhraseIndex, follow, grow
from phrase_store.metrics import observe_query
from phrase_store.stops import stops_of
from phrase_store.successors import SuccessorTable

# Up to 8 entries of 16 bytes per token, in a table that is half full at the end.
BYTES_PER_TOKEN = 256
# Bounds of the text length in tokens for which the table of own text is sized. A text longer than
# MAX_TOKENS fills the table further, up to twice that length; then the oldest entries are evicted.
MIN_TOKENS, MAX_TOKENS = 1024, 65_536
# Maximum output length for which space is reserved, as it is not known: 2 MiB.
MAX_EXPECTED_TOKENS = 8192
# Tokens of the initial text counted in one step, which takes some tenths of a millisecond.
PIECE_TOKENS = 512


Teach = Callable[[int, Sequence[Phrase]], None]


class Proposed(NamedTuple):
    """A proposal, and the drafted tokens after the committed ones that it follows."""

    drafted: tuple[int, ...]
    grown: Grown


class PhraseSession:
    """The phrases that one request drafts from and learns.

    `text`: the initial text. `prediction`: what the client expects the output to say, which counts
    as own text. `index_steps` counts both in pieces; a call that needs them counts the rest.
    `shared`: phrases of other requests, if this one may read them.
    `teach`: called with the phrases that it learns, to share them; None: they are not shared.
    `touch`: called once per round if there is no `teach`; keeps the shared phrases in use.
    `harvests`: whether predictions on rejected branches become phrases; committed tokens always do.
    `calibration`: may be shared by sessions of about the same temperature.
    `drafts_from_text`: whether own text is indexed and drafted from.
    `successors`: recycled successors to draft from, if any.
    `stop_token_ids`: nothing is drafted after one of these, and phrases end there.
    """

    def __init__(
        self,
        text: Sequence[int],
        expected_tokens: int,
        *,
        shared: PhraseIndex | None = None,
        teach: Teach | None = None,
        touch: Callable[[], None] | None = None,
        origin: int = 0,
        harvests: bool = True,
        stop_token_ids: Collection[int] = (),
        calibration: Calibration | None = None,
        drafts_from_text: bool = True,
        successors: SuccessorTable | None = None,
        prediction: Sequence[int] = (),
    ) -> None:
        self._own: PhraseIndex | None = None
        self._reading: Iterator[None] = iter(())
        if drafts_from_text:
            expected = min(expected_tokens, MAX_EXPECTED_TOKENS)
            tokens = max(MIN_TOKENS, len(text) + len(prediction) + expected)
            self._own = PhraseIndex(max_bytes=min(tokens, MAX_TOKENS) * BYTES_PER_TOKEN)
            # `prediction` first, so that the actual text counts as newer
            self._reading = _read(self._own, tuple(prediction), tuple(text))
        self._successors = successors
        self._shared = shared
        self._origin = origin
        self._harvests = harvests
        self._teach = teach
        self._touch = touch
        self._stop_token_ids = stop_token_ids
        self._stops = stops_of(stop_token_ids)
        self._calibration = calibration or Calibration()
        self._proposed: list[Proposed] = []
        self._unjudged: list[tuple[Proposed, Sequence[int]]] = []
        self._answered: list[Sequence[TokenSource]] = []  # queries not yet counted in metrics
        self._run = 0
        self._uncounted: list[tuple[Sequence[int], Sequence[int]]] = []  # contexts and new tokens

    def index_steps(self) -> Iterator[None]:
        """Counts the initial text and the prediction, one piece per step."""
        return self._reading

    def propose(
        self,
        context: Sequence[int],
        budget: DraftBudget,
        *,
        drafted: Sequence[int] = (),
        max_leaves: int | None = None,
    ) -> DraftTree:
        """The likeliest continuations within the budget, with at most `max_leaves` branches.

        They follow the committed `context` and the tokens `drafted` after it.
        """
        grown = self._grown(context, budget, drafted, max_leaves)
        first = [made for made in self._proposed if drafted and not made.drafted]
        self._proposed = [*first, Proposed(tuple(drafted), grown)]
        self._answered.append(grown.tree.sources)
        return grown.tree

    def peek(self, context: Sequence[int], budget: DraftBudget, beyond: Sequence[int]) -> DraftTree:
        """What it would propose after `context` and `beyond`, which it has not learned yet."""
        return self._grown(context, budget, beyond, None).tree

    def _grown(
        self,
        context: Sequence[int],
        budget: DraftBudget,
        drafted: Sequence[int],
        max_leaves: int | None,
    ) -> Grown:
        self._count()
        ended = bool(drafted) and drafted[-1] in self._stop_token_ids
        return grow(
            (*context[-MAX_CONTEXT:], *drafted),
            budget,
            shared=self._shared,
            own=self._own,
            successors=self._successors.rows if self._successors else None,
            calibration=self._calibration,
            max_leaves=0 if ended else max_leaves,
            run_before=self._run_after(context, drafted) if drafted else self._run,
            stops=self._stops,
        )

    @property
    def last_scores(self) -> list[float]:
        """Raw scores of the nodes of the last proposal."""
        return self._proposed[-1].grown.scores if self._proposed else []

    @property
    def last_runs(self) -> list[int]:
        """Runs of the nodes of the last proposal."""
        return self._proposed[-1].grown.runs if self._proposed else []

    def insert(self, phrases: Iterable[Phrase]) -> None:
        """Adds phrases to own text, without sharing them."""
        run_at_once(self._reading)
        if self._own is not None:
            self._own.insert(phrases)

    def extend(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        """Adds tokens committed after `context`; they are counted when the index is next needed."""
        if self._touch is not None:
            self._touch()
        self._count()
        self._run = self._run_after(context, token_ids)
        self._uncounted.append((context[-MAX_CONTEXT:], token_ids))

    def _count(self) -> None:
        run_at_once(self._reading)
        if self._own is not None:
            for context, token_ids in self._uncounted:
                self._own.extend(context, token_ids)
        self._uncounted.clear()

    def judge(self, emitted: Sequence[int]) -> None:
        """Calibrates by the last proposals, whether or not they were verified; done later.

        These are the last proposal after committed tokens only, and the last one after drafted
        tokens since then. A node counts as right or wrong if the emitted text reached its parent.
        """
        self._judge_all()
        proposed, self._proposed = self._proposed, []
        self._unjudged += [(made, emitted) for made in proposed]

    def _judge_all(self) -> None:
        for sources in self._answered:
            observe_query(sources)
        self._answered.clear()
        for (drafted, grown), emitted in self._unjudged:
            if tuple(emitted[: len(drafted)]) == drafted:
                self._judge(grown, emitted[len(drafted) :])
        self._unjudged.clear()

    def _judge(self, grown: Grown, emitted: Sequence[int]) -> None:
        tree, scores, runs = grown
        node = ROOT
        children: dict[int, list[int]] = {}
        for index, parent in enumerate(tree.parents):
            children.setdefault(parent, []).append(index)
        for token in emitted:
            found = None
            for child in children.get(node, ()):
                hit = tree.token_ids[child] == token
                found = child if hit else found
                cell = cell_of(tree.sources[child], scores[child], runs[child])
                count(self._calibration, cell, hit)
            if found is None:
                return
            node = found

    def _run_after(self, context: Sequence[int], token_ids: Sequence[int]) -> int:
        own, shared = self._own, self._shared
        return follow(context, token_ids, shared=shared, own=own, run_before=self._run)

    def recycle(self, last: int, draft: DraftTree, verdict: Verdict) -> None:
        """Stores the target's successors of the token `last` and of the draft's tokens."""
        if self._successors is not None and verdict.successor_ids:
            self._successors.learn([last, *draft.token_ids], verdict.successor_ids)

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        """Harvests a verdict on a draft that followed `context`. To be called in idle moments."""
        self._count()
        self._judge_all()
        phrases = harvest(context[-MAX_CONTEXT:], draft, verdict, self._stop_token_ids)
        if not self._harvests:
            phrases = [phrase for phrase in phrases if phrase.committed]
        if self._own is not None:
            self._own.insert(phrase for phrase in phrases if not phrase.committed)
        if self._teach is not None and phrases:
            self._teach(self._origin, phrases)


def _read(index: PhraseIndex, *texts: Sequence[int]) -> Iterator[None]:
    for text in texts:
        for start in range(0, len(text), PIECE_TOKENS):
            context = text[max(0, start - MAX_CONTEXT) : start]
            index.extend(context, text[start : start + PIECE_TOKENS])
            yield
