"""The phrases of one request; its first text is counted in pieces with the same result."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from draftloop.metrics import REGISTRY
from draftloop.phrase import Phrase, PhraseAccess, PhraseScope
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftTree, TokenSource, Verdict
from phrase_store.config import PhraseSettings
from phrase_store.index import PhraseIndex
from phrase_store.session import PhraseSession
from phrase_store.store import DraftsFrom, PhraseStore

AMPLE = DraftBudget(max_nodes=8, max_depth=8)


def own_index(session: PhraseSession) -> PhraseIndex:
    assert session._own is not None
    return session._own


def test_first_text_counted_in_pieces_gives_the_same_index() -> None:
    """A prompt of 128k tokens used to be counted before admission, which blocked everything."""
    random.seed(4)
    text, prediction = random.choices(range(40), k=1300), random.choices(range(40), k=600)
    sessions = [PhraseSession(text, 16, prediction=prediction) for _ in range(3)]
    table = own_index(sessions[0]).table
    assert not table.words.any()
    clocks = [int(table.state[0]) for _ in sessions[0].index_steps()]
    assert clocks == [512, 600, 1112, 1624, 1900]  # the clock: one tick per token
    next(sessions[1].index_steps())
    expected = PhraseIndex(max_bytes=table.words.nbytes)
    expected.extend((), prediction)
    expected.extend((), text)
    for session in sessions:  # the last two count the rest for their first draft
        assert len(session.propose(text, AMPLE)) == 8
        assert (own_index(session).table.words == expected.table.words).all()


def test_later_text_is_counted_after_the_first_text() -> None:
    """If the first text has not been counted completely, its rest is counted first."""
    text = [1, 2, 3, 1, 2, 4] * 200
    sessions = [PhraseSession(text, 16) for _ in range(2)]
    assert len(list(sessions[0].index_steps())) == 3
    for session in sessions:
        session.extend(text, [1, 2])
        session.insert([Phrase((2,), (5,))])
    drafts = [session.propose([*text, 1, 2], AMPLE) for session in sessions]
    tables = [own_index(session).table.words for session in sessions]
    assert all(draft == drafts[0] for draft in drafts)
    assert all((table == tables[0]).all() for table in tables)


def test_no_proposal_after_a_stop_token_drafted_by_another_source() -> None:
    """A stop token in the prompt, at the end of a turn, is followed by the next turn."""
    session = PhraseSession([5, 9, 1, 2] * 4, 16, stop_token_ids={9})
    assert len(session.propose([5], AMPLE, drafted=[9])) == 0
    assert session.propose([5], AMPLE, drafted=[9, 1]).token_ids[0] == 2
    assert session.propose([5, 9], AMPLE).token_ids[0] == 1


@pytest.mark.parametrize("harvests", [True, False])
def test_predictions_on_rejected_branches_are_drafted_from(harvests: bool) -> None:
    """Both the request and those that it teaches draft from it, unless this is switched off."""
    learned: list[Phrase] = []
    session = PhraseSession(
        [1, 2], 16, harvests=harvests, teach=lambda _, phrases: learned.extend(phrases)
    )
    draft = DraftTree.chain([7], TokenSource.DRAFT_MODEL)
    session.learn([1, 2], draft, Verdict((), (3,), 3, (5,)))
    rejected = Phrase((1, 2, 7), (5,), committed=False)
    assert learned == [Phrase((1, 2), (3,)), *[rejected] * harvests]
    assert session.propose([1, 2, 7], AMPLE).token_ids == (5,) * harvests


@pytest.fixture
def store() -> Iterator[PhraseStore]:
    opened = PhraseStore(PhraseSettings(phrases_url="memory://", phrases_mib=1))
    yield opened
    opened.close()


def test_memory_of_a_long_text_is_bounded() -> None:
    """Unbounded, 120,000 tokens took 31 MiB; 256 such requests exceeded the memory."""
    text = [token % 50_000 for token in range(120_000)]
    session = PhraseSession(text, 8192, prediction=text)
    assert session._own is not None and session._own.bytes == 16 << 20
    assert PhraseSession([1, 2, 3], 100)._own.bytes == 1024 * 256  # type: ignore[union-attr]
    # For the rest of a long context: the caller need not know how much a table should hold.
    assert PhraseSession([], 1 << 20)._own.bytes == 8192 * 256  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("scope", "own_text"),
    [(PhraseScope.OFF, True), (PhraseScope.PRIVATE, False), (PhraseScope.SHARED, False)],
)
def test_text_that_is_not_drafted_from_is_not_indexed(
    store: PhraseStore, scope: PhraseScope, own_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a text used to be indexed, 8 MiB for 32k tokens, although nothing read the index."""
    extended: list[Sequence[int]] = []

    def record_extend(self: PhraseIndex, context: Sequence[int], token_ids: Sequence[int]) -> None:
        extended.append(token_ids)

    monkeypatch.setattr(PhraseIndex, "extend", record_extend)
    session = store.session(
        PhraseAccess(scope=scope), [1, 2, 3] * 400, vocabulary_size=8, expected_tokens=16,
        publishes=True,
        drafts_from=DraftsFrom(own_text=own_text, recycles=True), prediction=[1, 2],
    )  # fmt: skip
    assert session is not None and session._own is None
    assert list(session.index_steps()) == []
    session.extend([1, 2], [3, 1])
    session.insert([Phrase((2,), (5,))])
    assert len(session.propose([3, 1], AMPLE)) == 0
    session.learn([3, 1], EMPTY_TREE, Verdict((), (2, 4), 2))
    assert not extended
    entries = [namespace.index.entries for namespace in store.namespaces()]
    assert entries == ([5] if scope is PhraseScope.SHARED else [])  # it teaches nevertheless


@pytest.mark.parametrize("judged", [True, False], ids=["judged", "of a drafter"])
def test_queries_are_counted_without_a_verdict(judged: bool) -> None:
    """The drafter proposes and learns, but never judges."""

    def query_counts() -> tuple[float, float]:
        queries = REGISTRY.get_sample_value("draftloop_phrase_queries_total")
        hits = REGISTRY.get_sample_value("draftloop_phrase_hits_total", {"source": "prompt_lookup"})
        return queries or 0.0, hits or 0.0

    session = PhraseSession([1, 2, 3, 1, 2], 64)
    queries, hits = query_counts()
    assert len(session.propose([1, 2, 3, 1, 2], AMPLE))
    assert len(session.propose([1, 2, 3, 1, 2], AMPLE, drafted=[9])) == 0
    if judged:
        session.judge([3])
    verdict = Verdict((), (3,), root_prediction=3)
    session.learn([1, 2, 3, 1, 2], EMPTY_TREE, verdict)
    assert query_counts() == (queries + 2, hits + 1)


def test_index_with_released_memory_counts_nothing() -> None:
    """Otherwise a session that still holds the index would write beyond its table."""
    index = PhraseIndex(max_bytes=1 << 14)
    index.extend((), [1, 2, 3])
    index.free()
    index.extend((), [1, 2, 4])
    index.insert([Phrase((1, 2), (5,))])
    assert index.bytes == index.entries == index.evictions == 0


LOOP = [1, 2, 3, 4] * 8


def trials_after_judging(session: PhraseSession, emitted: Sequence[int]) -> float:
    """The trials counted for the last proposals once the text continued with `emitted`."""
    session.judge(emitted)
    session.learn(LOOP, EMPTY_TREE, Verdict((), tuple(emitted), emitted[0]))
    return sum(session._calibration.trials)


def test_proposals_after_drafted_tokens_are_judged_if_those_were_accepted() -> None:
    for emitted, counts in (([1, 2, 3], True), ([9, 2, 3], False)):
        session = PhraseSession(LOOP, 16)
        assert session.propose(LOOP, AMPLE, drafted=[1]).token_ids[:2] == (2, 3)
        assert (trials_after_judging(session, emitted) > 0) == counts


def test_only_the_last_proposal_after_the_text_is_judged() -> None:
    """An earlier one may have been for a budget that has changed."""
    once, twice = PhraseSession(LOOP, 16), PhraseSession(LOOP, 16)
    for session in (once, twice, twice):
        session.propose(LOOP, AMPLE)
    assert trials_after_judging(once, [1, 2]) == trials_after_judging(twice, [1, 2]) > 0
