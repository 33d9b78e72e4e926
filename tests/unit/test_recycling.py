"""Token recycling: the table of successors, and drafts from it alone or with phrases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftloop.calibration import Calibration, cell_of
from draftloop.phrase import PhraseAccess, PhraseScope
from draftloop.tree import MAX_SUCCESSORS, ROOT, DraftBudget, DraftTree, TokenSource, Verdict
from phrase_store.config import PhraseSettings
from phrase_store.growth import RANK_SCORES
from phrase_store.index import PhraseIndex, grow
from phrase_store.session import PhraseSession
from phrase_store.store import DraftsFrom, PhraseStore
from phrase_store.successors import UNKNOWN, SuccessorTable

VOCABULARY = 32
RECYCLED = TokenSource.RECYCLED
BUDGET = DraftBudget(max_nodes=8, max_depth=4)


def table_of(**rows: Sequence[int]) -> SuccessorTable:
    table = SuccessorTable(VOCABULARY)
    for token, successors in rows.items():
        table.learn([int(token[1:])], successors)
    return table


def session_of(table: SuccessorTable | None, text: Sequence[int] = ()) -> PhraseSession:
    return PhraseSession(text, 16, successors=table)


def test_table_keeps_the_newest_successors_of_each_token() -> None:
    table = SuccessorTable(VOCABULARY)
    table.learn([3, 4], [5, 6, 7, 8])
    table.learn([3], [9])
    assert table.rows[3, :3].tolist() == [9, UNKNOWN, UNKNOWN]
    assert table.rows[4, :3].tolist() == [7, 8, UNKNOWN]
    assert table.rows.nbytes == VOCABULARY * 4 * MAX_SUCCESSORS  # bounded, whatever is learned


@pytest.mark.parametrize(
    ("tokens", "successors"),
    [([3, 4], [5, 6, 7]), ([3], [VOCABULARY]), ([3], [-5]), ([3], range(9)), ([], [1]), ([3], [])],
)
def test_malformed_successors_are_ignored(tokens: list[int], successors: Sequence[int]) -> None:
    table = SuccessorTable(VOCABULARY)
    table.learn(tokens, successors)
    assert (table.rows == UNKNOWN).all()


def test_duplicate_successors_are_ignored() -> None:
    """After a node without finite logits, all successors used to be the same token.

    The next draft had equal siblings, and the verifier refused it and closed the session.
    """
    table = table_of(t1=[2, 3])
    table.learn([1, 4, 7], [0, 0, 5, 6, 8, 8])
    assert table.rows[[1, 4, 7], :2].tolist() == [[2, 3], [5, 6], [UNKNOWN, UNKNOWN]]
    for last in (1, 4, 7):
        tree = session_of(table).propose([last], BUDGET)
        tree.validate(vocabulary_size=VOCABULARY, max_nodes=8)


def test_draft_from_successors_alone_is_ordered_best_first() -> None:
    session = session_of(table_of(t1=[2, 3], t2=[4], t4=[1]))
    tree = session.propose([9, 1], BUDGET)
    tree.validate(vocabulary_size=VOCABULARY, max_nodes=8)
    assert set(tree.sources) == {RECYCLED}
    assert (tree.token_ids[0], tree.parents[0]) == (2, ROOT)
    assert tree.estimates[0] == pytest.approx(RANK_SCORES[0])
    assert {(ROOT, 2), (ROOT, 3)} <= set(zip(tree.parents, tree.token_ids, strict=True))
    reached = tree.path_probabilities()
    assert reached == sorted(reached, reverse=True)


def test_phrases_and_successors_grow_one_tree() -> None:
    """Copied text goes first; successors share the remaining probability, under phrases too."""
    session = session_of(table_of(t1=[2, 7], t2=[8]), text=[5, 1, 2, 3, 5, 1, 2, 3])
    tree = session.propose([3, 5, 1], BUDGET)
    children = tree.children()
    copied = children[ROOT, 2]
    assert tree.sources[copied] is TokenSource.PROMPT_LOOKUP
    assert tree.sources[children[ROOT, 7]] is RECYCLED
    assert tree.sources[children[copied, 8]] is RECYCLED
    siblings = [e for e, parent in zip(tree.estimates, tree.parents, strict=True) if parent == ROOT]
    assert sum(siblings) <= 1


def learn(session: PhraseSession, emitted: list[int]) -> None:
    """Judges a round, then learns from it."""
    session.judge(emitted)
    session.learn([1], DraftTree(), Verdict((), tuple(emitted[-1:]), emitted[0]))


def test_proposed_nodes_with_accepted_parents_are_trials() -> None:
    calibration = Calibration()
    session = PhraseSession(
        [], 16, successors=table_of(t1=[2, 3], t2=[4], t3=[5]), calibration=calibration
    )
    tree = session.propose([1], DraftBudget(max_nodes=4, max_depth=2))
    assert len(tree) == 4
    learn(session, [2, 9])  # 2 was right and 3 wrong; below 2, 4 was wrong; 5 was never reached
    trials = sum(calibration.trials)
    # Each is counted at its depth and over all depths; trials fade.
    assert (trials, sum(calibration.hits)) == pytest.approx((2 * 3, 2 * 1), abs=0.1)
    assert calibration.hits[cell_of(RECYCLED, RANK_SCORES[0], 1)] == 1
    learn(session, [2, 4])  # nothing was proposed since
    assert sum(calibration.trials) == trials


def test_proposals_after_drafted_tokens_are_judged_if_those_were_accepted() -> None:
    """Both proposals of a round are judged: that at its start, and that after the draft."""
    trials = []
    for emitted in ([5, 2], [4, 2]):
        calibration = Calibration()
        table = table_of(t1=[2], t5=[2])
        session = PhraseSession([], 16, successors=table, calibration=calibration)
        one_node = DraftBudget(max_nodes=1, max_depth=1)
        session.propose([1], one_node)
        session.propose([1], one_node, drafted=[5])
        learn(session, emitted)
        trials.append((sum(calibration.trials), sum(calibration.hits)))
    both_accepted, first_accepted = trials
    assert both_accepted == pytest.approx((4, 2), abs=0.1)
    assert first_accepted == pytest.approx((2, 0), abs=0.1)


def test_successors_of_a_verdict_are_recycled() -> None:
    table = SuccessorTable(VOCABULARY)
    session = session_of(table)
    draft = DraftTree.chain([6, 7], RECYCLED)
    verdict = Verdict((), (1,), 1, (2, 3), successor_ids=(10, 11, 12, 13, 14, 15))
    session.recycle(5, draft, verdict)
    assert table.rows[[5, 6, 7], :2].tolist() == [[10, 11], [12, 13], [14, 15]]
    session.recycle(5, draft, Verdict((), (1,), 1, (2, 3)))  # from a verifier without successors
    assert table.rows[5, 0] == 10


def test_table_is_shared_by_the_phrase_scope() -> None:
    store = PhraseStore(PhraseSettings())
    recycles = DraftsFrom(shared=False, own_text=False, recycles=True)
    teaching = Verdict((), (1,), 1, (), successor_ids=(9,))

    def new_session(scope: PhraseScope, tenant: str = "a") -> PhraseSession:
        access = PhraseAccess(scope=scope, target_fingerprint="f", tenant=tenant, origin=1)
        session = store.session(
            access, (), vocabulary_size=VOCABULARY, expected_tokens=16, publishes=False,
            drafts_from=recycles,
        )  # fmt: skip
        assert session is not None
        return session

    def has_learned(session: PhraseSession) -> bool:
        return len(session.propose([5], BUDGET)) > 0

    try:
        for scope in (PhraseScope.READ_ONLY, PhraseScope.PRIVATE, PhraseScope.OFF):
            alone = new_session(scope)
            alone.recycle(5, DraftTree(), teaching)
            assert has_learned(alone) and not has_learned(new_session(PhraseScope.SHARED))
        new_session(PhraseScope.SHARED).recycle(5, DraftTree(), teaching)
        assert has_learned(new_session(PhraseScope.SHARED)) and has_learned(
            new_session(PhraseScope.READ_ONLY)
        )
        assert not has_learned(new_session(PhraseScope.PRIVATE))
        assert not has_learned(new_session(PhraseScope.SHARED, tenant="b"))
    finally:
        store.close()


def test_disabled_own_text_is_not_drafted_from() -> None:
    text = [1, 2, 3, 1, 2, 3]
    assert len(PhraseSession(text, 16).propose([3, 1], BUDGET))
    assert not len(PhraseSession(text, 16, drafts_from_text=False).propose([3, 1], BUDGET))


def test_own_text_precedes_the_clients_prediction() -> None:
    session = PhraseSession([1, 2, 4], 16, prediction=[1, 2, 3])
    assert session.propose([1, 2], DraftBudget(max_nodes=2, max_depth=1)).token_ids == (4, 3)


def test_run_continues_over_drafted_tokens() -> None:
    text = [1, 2, 3, 4, 5, 1]
    session = PhraseSession(text, 16)
    session.propose(text, BUDGET)
    assert session.last_runs[0] == 1
    session.propose(text, BUDGET, drafted=(2, 3))
    assert session.last_runs[0] == 3
    session.propose(text, BUDGET, drafted=(2, 9, 1))  # 9 was not guessed
    assert session.last_runs[0] == 1


def test_successors_share_the_probability_left_by_phrases() -> None:
    index = PhraseIndex(max_bytes=1 << 14)
    index.extend((), [1, 2] * 10)
    table = table_of(t1=[2, 3, 4])
    draft = grow(
        [1], DraftBudget(max_nodes=3, max_depth=1), shared=index, own=None,
        calibration=Calibration(), successors=table.rows,
    )  # fmt: skip
    phrase_estimate = draft.tree.estimates[0]
    assert draft.tree.token_ids == (2, 3, 4) and 0.5 < phrase_estimate < 1
    assert draft.scores[1:] == pytest.approx(RANK_SCORES[1:3] * (1 - phrase_estimate))


def test_unknown_successors_are_not_drafted() -> None:
    rows = np.full((VOCABULARY, MAX_SUCCESSORS), UNKNOWN, np.int32)
    grown = grow(
        [1], BUDGET, shared=PhraseIndex(max_bytes=1 << 12), own=None,
        calibration=Calibration(), successors=rows,
    )  # fmt: skip
    assert not len(grown.tree)
