"""Lookahead: the window is a tree with the paper's mask; its n-grams are the model's output."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from draftloop.lookahead import WINDOW_ESTIMATE, LookaheadParameters, LookaheadWindow
from draftloop.model_info import CostPoint
from draftloop.ngram_pool import NgramPool
from draftloop.speculation import LOOKAHEAD, Speculation
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, TokenSource, Verdict
from draftloop.tree_builder import TreeBuilder
from orchestrator.budget import Controller
from orchestrator.choice import DraftChoice
from orchestrator.config import OrchestratorSettings
from orchestrator.costs import VerifyCost
from orchestrator.deployment import Deployment
from orchestrator.gains import Gain, SharedGain
from orchestrator.outcome import RoundOutcome
from orchestrator.sources import LookaheadSource
from tests.support.generation_request import generation_request

TEXT = list(range(40, 60))
ROOM = {"max_depth": 100, "max_nodes": 1000}


def placed_tree(window: LookaheadWindow, **room: int) -> DraftTree:
    builder = TreeBuilder()
    window.place(builder, **{**ROOM, **room})
    return builder.build()


def outcome_of(committed: list[int], draft: DraftTree, verdict: Verdict) -> RoundOutcome:
    """The outcome of a round that committed one token."""
    return RoundOutcome(committed=committed, new_tokens=1, draft=draft, verdict=verdict)


def successors(tree: DraftTree) -> list[int]:
    """The predictions of a model that always counts on from the token before."""
    return [token + 1 for token in tree.token_ids]


def full_window(parameters: LookaheadParameters, text: Sequence[int]) -> LookaheadWindow:
    window = LookaheadWindow(parameters, text)
    for _ in range(parameters.ngram - 2):
        window.advance(successors(placed_tree(window)))
    return window


def test_window_is_full_after_n_minus_two_forwards() -> None:
    parameters = LookaheadParameters(window=4, ngram=5)
    window = full_window(parameters, TEXT)
    assert [len(row) for row in window.rows] == [4] * 4
    assert len(window.advance(successors(placed_tree(window)))) == 4


def test_window_token_sees_row_0_up_to_its_column_and_its_own_column() -> None:
    window = full_window(LookaheadParameters(window=3, ngram=4), [10, 20, 30, 40, 50, 60, 70])
    tree = placed_tree(window)
    assert len(tree) == 9
    for row in range(3):
        for column in range(3):
            node = row * 3 + column
            visible = [0, 1, 2][: column + 1] + [r * 3 + column for r in range(1, row + 1)]
            assert tree.path(node) == visible, (row, column)
    assert tree.depths() == [1, 2, 3, 2, 3, 4, 3, 4, 5]


def test_ngram_is_a_column_and_the_prediction_after_it() -> None:
    window = full_window(LookaheadParameters(window=2, ngram=4), [5, 50])
    first = window.rows[0]
    ngrams = window.advance(successors(placed_tree(window)))
    assert ngrams == [tuple(range(token, token + 4)) for token in first]
    assert [row[0] for row in window.rows] == [first[0] + 1, first[0] + 2, first[0] + 3]


def test_ngrams_of_two_tokens() -> None:
    window = LookaheadWindow(LookaheadParameters(window=3, ngram=2), TEXT)
    first = list(window.rows[0])
    assert window.advance(successors(placed_tree(window))) == [
        (token, token + 1) for token in first
    ]
    assert len(window.rows) == 1


@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 8), st.integers(0, 30))
def test_window_respects_maximum_depth_and_nodes(
    columns: int, ngram: int, depth: int, nodes: int
) -> None:
    window = full_window(LookaheadParameters(window=columns, ngram=ngram), TEXT)
    tree = placed_tree(window, max_depth=depth, max_nodes=nodes)
    assert len(tree) <= nodes and max(tree.depths(), default=0) <= depth
    tree.validate(vocabulary_size=1000, max_nodes=1000)
    window.advance(successors(tree))  # columns without room wait, and nothing breaks
    assert [len(row) for row in window.rows] == [columns] * (ngram - 1)


def test_columns_without_room_wait_for_a_larger_forward() -> None:
    """A single draft at a text's end, or beside many phrases, used to lose the window for good."""
    window = full_window(LookaheadParameters(window=4, ngram=4), TEXT)
    rows = [list(row) for row in window.rows]
    tree = placed_tree(window, max_nodes=8)
    assert len(tree) == 6
    assert window.advance(successors(tree)) == [
        (*(row[column] for row in rows), rows[-1][column] + 1) for column in (0, 1)
    ]
    remaining = [row[2:] for row in rows]
    assert [row[2:] for row in window.rows] == [remaining[1], remaining[2], remaining[2]]
    assert len(placed_tree(window)) == 12
    assert len(window.advance(successors(placed_tree(window)))) == 4


def test_forward_without_room_for_a_column_changes_nothing() -> None:
    window = full_window(LookaheadParameters(window=2, ngram=4), TEXT)
    rows = [list(row) for row in window.rows]
    assert window.advance(successors(placed_tree(window, max_nodes=2))) == []
    assert window.rows == rows


def test_window_reserves_whole_columns_in_half_of_the_nodes() -> None:
    window = full_window(LookaheadParameters(window=4, ngram=4), TEXT)
    nodes = {room: window.reserved(100, room) for room in (5, 6, 13, 23, 24, 100)}
    assert nodes == {5: 0, 6: 3, 13: 6, 23: 9, 24: 12, 100: 12}
    assert window.reserved(4, 100) == 6 and window.reserved(2, 100) == 0


@pytest.mark.parametrize(
    ("room", "columns"),
    [({"max_depth": 6}, 4), ({"max_depth": 5}, 3), ({"max_nodes": 12}, 4), ({"max_nodes": 11}, 3)],
)
def test_window_places_as_many_columns_as_fit(room: dict[str, int], columns: int) -> None:
    """Three rows of four columns: twelve nodes, the last of them at depth six."""
    window = full_window(LookaheadParameters(window=4, ngram=4), TEXT)
    assert len(placed_tree(window, **room)) == 3 * columns


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"window": 0}, "x.window"),
        ({"ngram": 1}, "x.ngram"),
        ({"candidates": 0}, "x.candidates"),
        ({"pool_size": 0}, "x.pool_size"),
        ({"window": 60}, "x: "),
    ],
)
def test_invalid_lookahead_parameters_are_refused(changes: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        LookaheadParameters(**changes).validate("x", 64)


def test_pool_keeps_the_most_recently_used_per_first_token() -> None:
    pool = NgramPool(ngram=3, pool_size=2)
    pool.insert([(1, 2, 3), (1, 4, 5), (7, 8, 9)])
    pool.insert([(1, 2, 3)])  # use refreshes
    pool.insert([(1, 6, 7)])
    assert pool.candidates(1, 5) == [(6, 7), (2, 3)]
    assert pool.candidates(1, 1) == [(6, 7)]
    assert pool.candidates(2, 5) == []


def test_pool_includes_ngrams_across_prompt_and_output() -> None:
    """In the reference code, such n-grams never enter the pool."""
    pool = NgramPool(ngram=3, pool_size=4)
    pool.extend([1, 2])
    pool.extend([3])
    pool.extend([4, 5])
    assert pool.candidates(2, 4) == [(3, 4)] and pool.candidates(3, 4) == [(4, 5)]


def test_pool_is_used_before_the_window_is_full() -> None:
    """The reference code waits N - 2 forwards even when its pool is warm."""
    source = LookaheadSource(LookaheadParameters(window=2, ngram=3), [1, 2, 3, 9, 1])
    tree = source.propose([1, 2, 3, 9, 1], DraftBudget(max_nodes=20, max_depth=20))
    assert {(ROOT, 2), (0, 3)} <= set(zip(tree.parents, tree.token_ids, strict=True))


def test_candidates_with_a_common_prefix_share_nodes() -> None:
    text = [1, 2, 3, 1, 2, 4, 1]
    source = LookaheadSource(LookaheadParameters(window=1, ngram=3), text)
    tree = source.propose(text, DraftBudget(max_nodes=20, max_depth=20))
    assert tree.token_ids.count(2) == 1 and {3, 4} <= set(tree.token_ids)
    assert set(tree.sources) == {TokenSource.LOOKAHEAD}


def settled_draft(most: int) -> DraftTree:
    """A draft in the twentieth round of a text in which many n-grams follow the last token.

    The model's predictions are new each time, so window and n-grams share no node.
    """
    text = [
        token for number in range(12) for token in (0, *range(10 * number + 1, 10 * number + 8))
    ]
    source, new_tokens = LookaheadSource(LookaheadParameters(), text), count(1000)
    budget = DraftBudget(max_nodes=most, max_depth=most)
    for _ in range(20):
        text.append(0)
        tree = source.propose(text, budget)
        verdict = Verdict((), (0,), 0, tuple(islice(new_tokens, len(tree))))
        source.observe(outcome_of(text, tree, verdict))
    return tree


@pytest.mark.parametrize(
    ("most", "of_window"), [(56, 28), (55, 24), (28, 12), (16, 8), (11, 4), (8, 4), (7, 0), (4, 0)]
)
def test_window_gets_half_of_a_small_draft(most: int, of_window: int) -> None:
    """The pool's n-grams used to take all nodes; now the window gets whole columns."""
    tree = settled_draft(most)
    tree.validate(vocabulary_size=10_000, max_nodes=most)
    assert tree.estimates.count(WINDOW_ESTIMATE) == of_window
    assert len(tree) > most - 4  # no node is left that another n-gram would have used


def test_verdict_on_another_draft_is_ignored() -> None:
    # The verdict of a reopened session is not about the draft, so the window stays as it is.
    source = LookaheadSource(LookaheadParameters(window=2, ngram=3), TEXT)
    before = source.propose(TEXT, DraftBudget(max_nodes=20, max_depth=20))
    reopened = Verdict(accepted_nodes=(), emitted_token_ids=(3,), root_prediction=3)
    source.observe(outcome_of([*TEXT, 3], EMPTY_TREE, reopened))
    assert source.propose([*TEXT, 3], DraftBudget(max_nodes=20, max_depth=20)) == before


def test_prompt_read_in_pieces_fills_the_same_pool() -> None:
    """Reading a prompt of 128k tokens at once blocked the event loop for 0.3 s."""
    text = [number * number % 23 for number in range(400)]
    parameters, budget = LookaheadParameters(), DraftBudget(max_nodes=60, max_depth=8)
    inserted = NgramPool(parameters.ngram, parameters.pool_size)
    inserted.extend(text)
    read, partly_read, fresh = (LookaheadSource(parameters, text) for _ in range(3))
    assert len(list(read.index_steps())) == 4
    next(partly_read.index_steps())
    drafts = [source.propose(text, budget) for source in (read, partly_read, fresh)]
    assert drafts[0] == drafts[1] == drafts[2]
    most = budget.max_nodes // (parameters.ngram - 1)
    candidates = inserted.candidates(text[-1], most)
    assert {one[0] for one in candidates} <= set(drafts[0].token_ids)
    reopened = Verdict(accepted_nodes=(), emitted_token_ids=(3,), root_prediction=3)
    unread = LookaheadSource(parameters, text)
    for source in (read, unread):
        source.observe(outcome_of([*text, 3], EMPTY_TREE, reopened))
    assert unread.propose([*text, 3], budget) == read.propose([*text, 3], budget)


def test_ngrams_end_at_a_stop_token() -> None:
    """Such n-grams can never be accepted, and used to take places in the pool and in drafts."""
    pool = NgramPool(ngram=4, pool_size=2, stop_token_ids={9})
    pool.insert([(1, 2, 9, 3), (1, 7, 7, 7), (1, 2, 9, 4), (9, 1, 1, 1), (5, 9, 9, 9)])
    assert pool.candidates(1, 5) == [(2, 9), (7, 7, 7)]  # the two are one n-gram
    assert pool.candidates(9, 5) == [(1, 1, 1)]  # after committed tokens, texts may go on
    assert pool.candidates(5, 5) == [(9,)]


def test_draft_ends_at_a_stop_token() -> None:
    text, parameters = [1, 2, 9, 3, 4, 1], LookaheadParameters(window=1, ngram=5)
    for stop_token_ids, drafted in (((), {2, 9, 3, 4}), ((9,), {2, 9})):
        source = LookaheadSource(parameters, text, stop_token_ids)
        tree = source.propose(text, DraftBudget(max_nodes=20, max_depth=20))
        assert ngram_tokens(tree) == drafted


async def test_lookahead_uses_the_requests_stop_tokens() -> None:
    request = generation_request(
        prompt=(1, 2, 9, 3, 4, 1),
        speculation=Speculation(strategy=LOOKAHEAD, max_draft_tokens=60),
        stop_token_ids=frozenset({9}),
    )
    deployment = Deployment(OrchestratorSettings())
    controller = Controller(max_nodes=60, verify_cost=VerifyCost((CostPoint(1, 1000),)), fixed=True)
    choice = DraftChoice(controller, Gain(SharedGain(deque([0.0]))))
    drafting = deployment._draft_without_model_service(request, None, choice)
    await drafting.index_prompt()
    budget = DraftBudget(max_nodes=60, max_depth=20)
    draft = await drafting.propose(request.prompt, budget)
    assert ngram_tokens(draft.tree) == {2, 9}
    await deployment.stop()


def ngram_tokens(tree: DraftTree) -> set[int]:
    """The tokens of nodes outside the window."""
    nodes = zip(tree.token_ids, tree.estimates, strict=True)
    return {token for token, estimate in nodes if estimate > WINDOW_ESTIMATE}
