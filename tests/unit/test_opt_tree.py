"""OPT-Tree against brute force over all trees, and against the faults of the reference code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafter_service.session import DrafterSession
from drafter_service.strategies.opt_tree import OptTree
from draftloop.request import SamplingParameters
from draftloop.speculation import OptTreeParameters
from draftloop.tree import ROOT, DraftBudget, DraftEnd, DraftTree
from tests.support.scripted_drafter import ScriptedModel, finish, session_of
from tests.support.toy_model import TableModel

PROMPT = [1, 0, 2]
GREEDY = SamplingParameters(temperature=0.0, seed=1)
Path = tuple[int, ...]


def new_strategy(
    model: ScriptedModel, sampling: SamplingParameters = GREEDY, **parameters: float
) -> tuple[OptTree, DrafterSession]:
    opt_tree = OptTreeParameters(**parameters)  # type: ignore[arg-type]
    session = session_of(model, PROMPT, sampling, opt_tree=opt_tree)
    return OptTree(session), session


def propose(strategy: OptTree, nodes: int = 64, depth: int = 64, **prices: float) -> DraftTree:
    budget = DraftBudget(max_nodes=nodes, max_depth=depth, **prices)
    tree = finish(strategy.propose(budget), strategy.session)
    tree.validate(vocabulary_size=strategy.session.model.vocabulary_size, max_nodes=nodes)
    return tree


def path_laws(table: TableModel, depth: int) -> dict[Path, float]:
    """The path probability of every node of the complete tree down to `depth`."""
    laws: dict[Path, float] = {(): 1.0}
    for length in range(depth):
        for path in itertools.product(range(table.vocabulary_size), repeat=length):
            law = table.logits([*PROMPT, *path]).softmax(-1).tolist()
            for token, share in enumerate(law):
                laws[(*path, token)] = laws[path] * share
    return laws


def best_by_brute_force(laws: dict[Path, float], nodes: int) -> float:
    """The greatest sum over all trees of `nodes` nodes."""
    trees: set[frozenset[Path]] = {frozenset()}
    for _ in range(nodes):
        trees = {
            tree | {path}
            for tree in trees
            for path in laws
            if path and path not in tree and (len(path) == 1 or path[:-1] in tree)
        } or trees
    return max(sum(laws[path] for path in tree) for tree in trees)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), vocabulary=st.integers(2, 3), nodes=st.integers(1, 4),
    depth=st.integers(1, 3),
)  # fmt: skip
def test_tree_is_optimal_among_trees_of_its_size(
    seed: int, vocabulary: int, nodes: int, depth: int
) -> None:
    table = TableModel(vocabulary_size=vocabulary, seed=seed)
    strategy, _ = new_strategy(
        ScriptedModel(table.logits, vocabulary), nodes=nodes, delta=0, depth=depth
    )
    tree = propose(strategy)
    value = sum(tree.path_probabilities())
    assert value == pytest.approx(best_by_brute_force(path_laws(table, depth), nodes), abs=1e-5)


def uniform_logits(prefix: Sequence[int]) -> Tensor:
    return torch.zeros(4)


def certain_logits(prefix: Sequence[int]) -> Tensor:
    """One token has all of the probability, so all nodes of the path have the same."""
    row = torch.full((4,), float("-inf"))
    row[len(prefix) % 4] = 0.0
    return row


@pytest.mark.parametrize("nodes", [1, 3, 7, 16, 30])
def test_ties_do_not_orphan_a_child(nodes: int) -> None:
    """The reference crashes when a confident drafter gives parent and child the same weight."""
    for logits in (uniform_logits, certain_logits):
        strategy, _ = new_strategy(ScriptedModel(logits, 4), nodes=nodes, delta=0, depth=12)
        tree = propose(strategy)
        assert len(tree) == (nodes if logits is uniform_logits else min(nodes, 12))


def test_last_layer_is_not_run() -> None:
    """The reference code drafts one layer more than it uses."""
    model = ScriptedModel(TableModel(seed=5).logits, 4)
    strategy, _ = new_strategy(model, nodes=16, delta=0, depth=3)
    tree = propose(strategy)
    assert max(tree.depths()) == 3
    assert len(model.rows_of_forwards) == 3  # root, layer 1, layer 2
    assert strategy.end is DraftEnd.DEPTH


def test_nodes_that_cannot_reach_the_best_tree_are_not_run() -> None:
    model = ScriptedModel(TableModel(seed=5, spread=3).logits, 4)
    strategy, _ = new_strategy(model, nodes=4, delta=0, depth=10)
    propose(strategy)
    layers = model.rows_of_forwards[1:]
    assert max(layers) <= 4 and sum(layers) < 4 * len(layers)
    assert len(layers) < 9
    assert strategy.end is DraftEnd.NODES


@pytest.mark.parametrize(("delta", "forwards"), [(1.0, 1), (0.0, 6)])
def test_layer_must_gain_delta(delta: float, forwards: int) -> None:
    model = ScriptedModel(certain_logits, 4)
    strategy, _ = new_strategy(model, nodes=30, delta=delta, depth=6)
    propose(strategy)
    assert len(model.rows_of_forwards) == forwards
    assert strategy.end is (DraftEnd.DRAFT_COST if delta else DraftEnd.DEPTH)


def certain_first_token_logits(prefix: Sequence[int]) -> Tensor:
    return certain_logits(prefix) if len(prefix) == len(PROMPT) else uniform_logits(prefix)


@pytest.mark.parametrize(
    ("delta", "forwards", "end"), [(0.3, 2, DraftEnd.DRAFT_COST), (0.2, 3, DraftEnd.NODES)]
)
def test_gains_of_earlier_layers_do_not_count(delta: float, forwards: int, end: DraftEnd) -> None:
    """With two nodes, the first layer gains 1, the second another 1/4, the third nothing."""
    model = ScriptedModel(certain_first_token_logits, 4)
    strategy, _ = new_strategy(model, nodes=2, delta=delta, depth=6)
    propose(strategy)
    assert len(model.rows_of_forwards) == forwards
    assert strategy.end is end


def test_prices_are_ignored_when_delta_is_set() -> None:
    for delta in (0.0, 0.5):
        model = ScriptedModel(certain_logits, 4)
        strategy, _ = new_strategy(model, nodes=30, delta=delta, depth=6)
        propose(strategy, tokens_per_second=1e6)
        assert len(model.rows_of_forwards) == 6


def test_forward_price_decides_without_delta() -> None:
    for rate, forwards in ((0.0, 6), (1e6, 1)):
        model = ScriptedModel(certain_logits, 4)
        strategy, _ = new_strategy(model, nodes=30, depth=6)
        propose(strategy, tokens_per_second=rate)
        assert len(model.rows_of_forwards) == forwards


def test_requested_nodes_are_drafted_up_to_the_budget() -> None:
    # `nodes` overrides prices, but not the limits of the budget.
    for nodes, depth, drafted in ((64, 64, 6), (3, 64, 3), (64, 1, 4)):
        strategy, _ = new_strategy(ScriptedModel(uniform_logits, 4), nodes=6, delta=0)
        assert len(propose(strategy, nodes, depth, least_path_probability=0.2)) == drafted


def test_nodes_not_worth_their_verification_are_cut() -> None:
    strategy, _ = new_strategy(ScriptedModel(uniform_logits, 4), delta=0)
    tree = propose(strategy, least_path_probability=0.1)
    assert len(tree) == 4  # layer 2's 16 nodes would each be reached with 1 / 16
    assert strategy.end is DraftEnd.VERIFY_COST


def sum_of_siblings(tree: DraftTree) -> float:
    """The greatest sum of any parent's children."""
    totals: dict[int, float] = {}
    for parent, estimate in zip(tree.parents, tree.estimates, strict=True):
        totals[parent] = totals.get(parent, 0.0) + estimate
    return max(totals.values())


def test_sibling_estimates_sum_to_at_most_one() -> None:
    table = TableModel(vocabulary_size=4, seed=9)
    strategy, session = new_strategy(ScriptedModel(table.logits, 4), nodes=20, delta=0, depth=3)
    for _ in range(60):  # a target that always agrees makes every bucket look certain
        tree = propose(strategy)
        strategy.candidates.judge([tree.token_ids[0]])
    assert sum_of_siblings(tree) <= 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), vocabulary=st.integers(2, 8), spread=st.floats(0, 8),
    temperature=st.sampled_from([0.0, 0.7, 1.0]), nodes=st.integers(1, 40),
    depth=st.integers(1, 6), hit_rates=st.lists(st.floats(0, 1), min_size=1, max_size=30),
)  # fmt: skip
def test_sibling_estimates_sum_to_at_most_one_for_any_calibration(
    seed: int, vocabulary: int, spread: float, temperature: float, nodes: int, depth: int,
    hit_rates: list[float],
) -> None:  # fmt: skip
    """With any distribution and any calibration, even one that trusts later children more."""
    table = TableModel(vocabulary_size=vocabulary, seed=seed, spread=spread)
    sampling = SamplingParameters(temperature=temperature, seed=seed)
    strategy, session = new_strategy(
        ScriptedModel(table.logits, vocabulary), sampling, nodes=nodes, delta=0, depth=depth
    )
    calibration = session.experience.calibration
    for cell, rate in zip(range(len(calibration.hits)), itertools.cycle(hit_rates), strict=False):
        calibration.trials[cell], calibration.hits[cell] = 100.0, 100.0 * rate
    tree = propose(strategy)
    assert len(tree) >= 1
    assert sum_of_siblings(tree) <= 1 + 1e-9


def test_best_child_keeps_its_estimate_and_other_children_share_the_rest() -> None:
    law = torch.tensor([0.4, 0.3, 0.2, 0.1])
    strategy, session = new_strategy(
        ScriptedModel(lambda _: law.log(), 4), nodes=4, delta=0, depth=1
    )
    calibration = session.experience.calibration
    for cell in range(len(calibration.hits)):  # every guess was right in half of all cases
        calibration.trials[cell], calibration.hits[cell] = 1e9, 0.5e9
    tree = propose(strategy)
    estimates = dict(zip(tree.token_ids, tree.estimates, strict=True))
    assert estimates == pytest.approx({0: 1 / 2, 1: 1 / 6, 2: 1 / 6, 3: 1 / 6}, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_keys_and_values_of_accepted_nodes_are_kept(temperature: float) -> None:
    """The reference code computes them again."""
    model = ScriptedModel(TableModel(seed=2).logits, 4)
    sampling = SamplingParameters(temperature=temperature, seed=3)
    strategy, session = new_strategy(model, sampling, nodes=12, delta=0, depth=4)
    tree = propose(strategy)
    children = tree.children()
    first = children[ROOT, tree.token_ids[0]]
    second = next(node for node, parent in enumerate(tree.parents) if parent == first)
    session.commit([tree.token_ids[first], tree.token_ids[second], 3], len(PROMPT) + 3)
    model.rows_of_forwards.clear()
    again = propose(strategy)
    assert model.rows_of_forwards[0] == 1  # only the bonus token
    fresh, uncached = new_strategy(
        ScriptedModel(model.logits, 4), sampling, nodes=12, delta=0, depth=4
    )
    uncached.commit([tree.token_ids[first], tree.token_ids[second], 3], len(PROMPT) + 3)
    assert propose(fresh).token_ids == again.token_ids


def test_deep_tree_fits_a_small_cache() -> None:
    """Keys and values of paths that were abandoned make room for the next layer."""
    model = ScriptedModel(TableModel(seed=7, spread=2.5).logits, 4, max_draft_nodes=8)
    strategy, _ = new_strategy(model, delta=0, depth=10)
    tree = propose(strategy, nodes=8)
    wide_model = ScriptedModel(model.logits, 4)
    wide_strategy, _ = new_strategy(wide_model, nodes=8, delta=0, depth=10)
    assert tree == propose(wide_strategy)


def test_draft_ends_at_stop_tokens_and_the_context_limit() -> None:
    model = ScriptedModel(uniform_logits, 4, stop_token_ids=(2,), context_length=len(PROMPT) + 3)
    strategy, _ = new_strategy(model, delta=0, nodes=60)
    tree = propose(strategy)
    assert all(parent == ROOT or tree.token_ids[parent] != 2 for parent in tree.parents)
    assert max(tree.depths()) == 3


def test_shared_noise_ranks_the_targets_token_first() -> None:
    """If the drafter has the target's distribution, the first child is the target's token."""
    table = TableModel(vocabulary_size=4, seed=11)
    sampling = SamplingParameters(temperature=1.0, seed=42)
    strategy, session = new_strategy(ScriptedModel(table.logits, 4), sampling, nodes=1, delta=0)
    for _ in range(30):
        tree = propose(strategy)
        verdict = table.verify(session.sampler, session.committed, tree)
        assert verdict.accepted_nodes == (0,)
        emitted = list(verdict.emitted_token_ids)
        session.commit(emitted, len(session.committed) + len(emitted))
