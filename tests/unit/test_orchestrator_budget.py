"""The draft budget follows costs and acceptance, down to nothing; figures add up."""

from __future__ import annotations

import pytest

from draftloop.errors import Overloaded
from draftloop.model_info import CostPoint
from draftloop.tree import DraftTree, TokenSource
from orchestrator.admission import RequestLimit
from orchestrator.budget import PROBE_ROUNDS, Controller, VerifyCost, expected_tokens
from orchestrator.figures import SpeculationFigures
from orchestrator.replicas import Replica

FLAT = (CostPoint(1, 1000), CostPoint(32, 1000))
STEEP = (CostPoint(1, 1000), CostPoint(32, 32000))


def controller(curve: tuple[CostPoint, ...], draft_ns: float, fixed: bool = False) -> Controller:
    return Controller(
        max_depth=8, verify_cost=VerifyCost(curve), draft_token_ns=draft_ns, fixed=fixed
    )


def test_expected_tokens_is_the_geometric_sum() -> None:
    assert expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert expected_tokens(1.0, 3) == 4
    assert expected_tokens(0.0, 5) == 1


def test_free_drafts_are_as_deep_as_allowed_and_dear_ones_are_not_made() -> None:
    assert controller(FLAT, 0.0).next_budget(100).max_depth == 8
    assert controller(FLAT, 0.0).next_budget(3).max_depth == 3
    assert controller(STEEP, 5000.0).next_budget(100).max_nodes == 0
    assert controller(STEEP, 5000.0, fixed=True).next_budget(100).max_depth == 8


def test_after_a_while_without_drafts_one_is_tried() -> None:
    dear = controller(STEEP, 5000.0)
    depths = [dear.next_budget(100).max_depth for _ in range(PROBE_ROUNDS + 2)]
    assert depths[:PROBE_ROUNDS] == [0] * PROBE_ROUNDS and 2 in depths[PROBE_ROUNDS:]


def test_no_room_means_no_draft() -> None:
    assert controller(FLAT, 0.0, fixed=True).next_budget(0).max_nodes == 0


def test_acceptance_follows_the_verdicts() -> None:
    followed = controller(FLAT, 0.0)
    for _ in range(200):
        followed.observe(drafted=4, accepted=4)
    assert followed.acceptance > 0.95
    for _ in range(200):
        followed.observe(drafted=4, accepted=0)
    assert followed.acceptance < 0.05


def test_figures_add_up() -> None:
    figures = SpeculationFigures()
    assert figures.tokens_per_round == 0
    tree = DraftTree.chain([1, 2, 3], TokenSource.DRAFT_MODEL)
    for accepted in (3, 1, 0):
        figures.observe(tree, accepted, accepted + 1)
    assert figures.accepted_per_position == [2, 1, 1]
    assert sum(figures.accepted_per_position) == figures.accepted_tokens == 4
    assert figures.draft_tokens == 9
    assert figures.tokens_per_round == pytest.approx(7 / 3)


def test_a_failed_replica_rests_longer_each_time_until_it_works() -> None:
    replica = Replica("nowhere:1", channel=None)
    replica.failed()
    first = replica.resting_until
    replica.failed()
    assert replica.resting and replica.resting_until > first
    replica.worked()
    assert not replica.resting and replica.failures == 0


def test_the_request_limit_holds_and_gives_back() -> None:
    limit = RequestLimit(1)
    with limit.one_more(), pytest.raises(Overloaded), limit.one_more():
        pass
    with limit.one_more():
        assert limit.running == 1
    assert limit.running == 0
