"""The draft budget follows costs and acceptance, down to no draft; figures add up."""

from __future__ import annotations

import dataclasses

import pytest

from draftloop.errors import Overloaded
from draftloop.model_info import CostPoint
from draftloop.pace import Pace
from draftloop.tree import Draft, DraftTree, ServiceTimings, TokenSource, Verdict
from orchestrator.admission import RequestLimit
from orchestrator.budget import Controller
from orchestrator.costs import VerifyCost, VerifyOverhead
from orchestrator.figures import SpeculationFigures
from orchestrator.replicas import Replica
from orchestrator.selection import Offer
from orchestrator.verifier_load import VerifierLoad

FLAT = (CostPoint(1, 1000), CostPoint(32, 1000))
STEEP = (CostPoint(1, 1000), CostPoint(32, 32000))
SLOPING = (CostPoint(1, 1000), CostPoint(32, 2000))


def controller(curve: tuple[CostPoint, ...], fixed: bool = False) -> Controller:
    return Controller(max_nodes=8, verify_cost=VerifyCost(curve), fixed=fixed)


def test_verification_cost_follows_the_curve_and_recent_rounds() -> None:
    cost = VerifyCost(SLOPING)
    assert cost.nanoseconds(0) == 1000 and cost.nanoseconds(31) == 2000
    assert cost.node_nanoseconds(0, 31) == pytest.approx(1000 / 31)
    for _ in range(50):
        cost.observe(0, 3000)
    assert cost.nanoseconds(0) == pytest.approx(3000, rel=0.01)
    assert cost.nanoseconds(31) == pytest.approx(4000, rel=0.01)  # as far as is known
    for _ in range(50):
        cost.observe(31, 5000)
    assert cost.nanoseconds(31) == pytest.approx(5000, rel=0.01)
    assert cost.nanoseconds(0) == pytest.approx(3000, rel=0.1)  # with drafts more is around it
    assert cost.times(31)[0] == cost.nanoseconds(0) and cost.times(31)[31] == cost.nanoseconds(31)
    assert cost.node_nanoseconds(0, 31) == pytest.approx(1000 / 31)  # overhead does not grow here


def test_verification_time_is_never_zero() -> None:
    """Prices are fractions of a verification's time, which must not be 0."""
    cost = VerifyCost(FLAT)
    cost.observe(0, 0)
    assert cost.nanoseconds(0) == 1


def test_additional_node_never_saves_time() -> None:
    assert VerifyCost((CostPoint(1, 2000), CostPoint(8, 1000))).node_nanoseconds(0, 31) == 0


def test_step_of_the_curve_is_shared_by_the_nodes_on_it() -> None:
    """Otherwise drafts would end before the step: only the first node beyond it is expensive."""
    cost = VerifyCost(
        (CostPoint(1, 1000), CostPoint(2, 1010), CostPoint(4, 1030), CostPoint(5, 1220),
         CostPoint(12, 1220), CostPoint(13, 2000), CostPoint(16, 2000))
    )  # fmt: skip
    assert cost.node_nanoseconds(1, 15) == pytest.approx(10)
    assert cost.node_nanoseconds(3, 3) == pytest.approx(10)  # no draft reaches the step
    assert cost.node_nanoseconds(3, 15) == pytest.approx(10)
    steep_first = VerifyCost((CostPoint(1, 1000), CostPoint(2, 1330), CostPoint(12, 1330)))
    assert steep_first.node_nanoseconds(0, 1) == pytest.approx(165)  # the next two together
    assert steep_first.node_nanoseconds(0, 11) == pytest.approx(30)
    assert steep_first.node_nanoseconds(1, 11) == 0


def test_next_request_starts_with_the_known_verify_overhead() -> None:
    shared_overhead = VerifyOverhead()
    cost = VerifyCost(SLOPING, shared_overhead=shared_overhead)
    assert cost.nanoseconds(0) == 1000
    for duration_ns in (2000, 900_000, 2000):  # the machine stalled once
        cost.observe(0, duration_ns)
    assert VerifyCost(SLOPING, shared_overhead=shared_overhead).nanoseconds(31) == 3000


def test_request_starts_at_the_shared_pace_and_finds_its_own() -> None:
    first = controller(FLAT)
    for _ in range(50):
        first.observe(4, 5, 2000)
    assert first.prices.rate == pytest.approx(5 / 2000)
    second = dataclasses.replace(first, _pace=Pace(memory=0.95))
    assert second.shared_pace is first.shared_pace and second.prices.rate == pytest.approx(5 / 2000)
    second.observe(4, 9, 2000)  # one lucky round does not set the pace
    assert 5 / 2000 < second.prices.rate < 6 / 2000
    for _ in range(100):
        second.observe(4, 9, 2000)
    assert second.prices.rate == pytest.approx(9 / 2000, rel=0.15)
    assert first.shared_pace.rate == pytest.approx(second.shared_pace.rate)


def shared_timings(sessions: int, rows: int, waiting: int = 0) -> ServiceTimings:
    return ServiceTimings(batch_size=sessions, batch_rows=rows, waiting=waiting)


def test_shared_verification_cost_starts_at_other_sessions_rows() -> None:
    # In a shared forward, nodes are priced by the curve beyond the rows of other sessions.
    curve = (CostPoint(1, 1000), CostPoint(16, 1000), CostPoint(32, 3000))
    alone, shared = VerifyCost(curve), VerifyCost(curve)
    assert shared.times(4) == [1000.0] * 5
    for _ in range(20):
        shared.observe(2, 1250, shared_timings(sessions=8, rows=18))
    assert shared.load.sessions == 8 and shared.load.other_rows == 15
    assert (
        shared.node_nanoseconds(0, 16) == pytest.approx(125) and alone.node_nanoseconds(0, 31) == 0
    )
    assert shared.times(1)[1] - shared.times(1)[0] == pytest.approx(125)
    for _ in range(20):
        shared.observe(2, 1000, shared_timings(sessions=1, rows=3))
    assert shared.times(4) == alone.times(4) and not shared.load.is_shared


def test_node_price_counts_all_waiting_sessions() -> None:
    # A node delays all sessions that wait for the forward, so its price counts all their tokens.
    alone, shared = controller(SLOPING), controller(SLOPING)
    for _ in range(20):
        shared.verify_cost.load.observe(3, shared_timings(sessions=5, rows=3, waiting=2))
    for plan in (alone, shared):
        for _ in range(20):
            plan.observe(nodes=2, emitted=2, round_ns=1000)
    assert shared.prices.node_price == pytest.approx(7 * alone.prices.node_price)
    assert shared.worth() == pytest.approx(1 - 7 * (1 - alone.worth()))
    # a draft forward delays no other session
    assert shared.next_budget(8).tokens_per_second == alone.next_budget(8).tokens_per_second


def test_prompts_in_a_step_lower_only_the_value_of_own_time() -> None:
    """Drafts make prompts no shorter, so for all sessions together a node is no cheaper."""
    alone, prefilled, shared = (controller(SLOPING) for _ in range(3))
    prompt = {"service_ns": 4000, "prompts_ns": 3000, "prompts": 1, "prompt_rows": 99}
    for _ in range(20):
        two, six = shared_timings(sessions=2, rows=102), shared_timings(sessions=6, rows=114)
        prefilled.verify_cost.load.observe(3, dataclasses.replace(two, **prompt))
        shared.verify_cost.load.observe(3, dataclasses.replace(six, **prompt))
    for plan in (alone, prefilled, shared):
        for _ in range(50):
            plan.observe(nodes=2, emitted=2, round_ns=1000 if plan is alone else 4000)
    assert prefilled.verify_cost.load.prompt_share == pytest.approx(0.75)
    assert (prefilled.verify_cost.load.sessions, shared.verify_cost.load.sessions) == (1, 5)
    assert (prefilled.verify_cost.load.other_rows, shared.verify_cost.load.other_rows) == (0, 12)
    assert prefilled.prices.shared_rate == pytest.approx(alone.prices.shared_rate / 4)
    assert shared.prices.shared_rate == pytest.approx(alone.prices.shared_rate * (1 / 4 + 4))


def test_prompts_share_stays_below_one() -> None:
    load = VerifierLoad()
    assert load.prompt_share == 0
    load.observe(3, ServiceTimings(service_ns=5, prompts_ns=10))
    assert load.prompt_share < 1


def test_draft_overhead_is_not_learned_from_shared_rounds() -> None:
    cost = VerifyCost(FLAT)
    for _ in range(40):
        cost.observe(0, 2000, shared_timings(sessions=4, rows=20))
        cost.observe(8, 900_000, shared_timings(sessions=4, rows=20))
    assert cost.shared_overhead.nanoseconds(8) == cost.shared_overhead.nanoseconds(0)


def test_draft_overhead_is_not_learned_when_load_begins() -> None:
    """A round may wait for prompts of sessions not yet counted: no draft would pay again."""
    cost = VerifyCost(FLAT)
    loads = (
        shared_timings(sessions=16, rows=24),
        shared_timings(sessions=1, rows=9, waiting=15),
        dataclasses.replace(shared_timings(sessions=1, rows=9), prompts_ns=1),
    )
    for _ in range(6):
        for _ in range(8):
            cost.observe(0, 2000, shared_timings(sessions=1, rows=1))
        for timings in loads:
            cost.observe(8, 300_000_000, timings)
            assert not cost.load.is_shared
    assert cost.nanoseconds(8) == cost.nanoseconds(0) == pytest.approx(2000)


def test_prompt_time_is_not_counted_in_rounds() -> None:
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1000), CostPoint(32, 3000)))
    timings = dataclasses.replace(
        shared_timings(sessions=8, rows=518), prompt_rows=500, prompts_ns=70_000
    )
    for _ in range(20):
        cost.observe(2, 71_750, timings)
    assert cost.load.other_rows == 15
    assert cost.shared_overhead.nanoseconds(0) == pytest.approx(500)


def test_single_prompt_among_many_rounds_is_no_load() -> None:
    load = VerifierLoad()
    for _ in range(15):
        load.observe(3, shared_timings(sessions=1, rows=3))
    load.observe(3, shared_timings(sessions=2, rows=515))
    assert (load.sessions, load.other_rows, load.is_shared) == (1, 0, False)
    load.observe(3, ServiceTimings())  # from a service that does not report it
    assert not load.is_shared


def test_load_resets_when_a_service_does_not_report_it() -> None:
    load = VerifierLoad()
    for _ in range(20):
        load.observe(3, shared_timings(sessions=8, rows=18))
    for _ in range(20):
        load.observe(3, ServiceTimings())
    assert (load.sessions, load.other_rows) == (1, 0)


def test_verify_overhead_grows_with_nodes() -> None:
    """Small drafts are not charged for the overhead of large ones."""
    cost = VerifyCost(FLAT)
    for _ in range(20):
        cost.observe(0, 3000)
        for nodes in (2, 8, 20):
            cost.observe(nodes, 3100 + 50 * nodes)
    assert cost.nanoseconds(0) == pytest.approx(3000, rel=0.05)
    assert cost.nanoseconds(2) == pytest.approx(3200, rel=0.05)
    assert cost.times(20)[20] == cost.nanoseconds(20) == pytest.approx(4100, rel=0.05)
    assert cost.node_nanoseconds(0, 31) == pytest.approx(50, rel=0.05)


def test_stalled_round_does_not_raise_the_price_of_drafts() -> None:
    """Otherwise no draft would be tried again, and nothing would show that drafts are cheap."""
    cost = VerifyCost(FLAT)
    for round_number in range(40):
        cost.observe(0, 2000)
        cost.observe(4, 900_000 if round_number % 10 == 9 else 2200)
    assert cost.nanoseconds(4) == pytest.approx(2200, rel=0.05)


def cost_after_a_busy_moment() -> VerifyCost:
    cost = VerifyCost(FLAT)
    for _ in range(40):
        cost.observe(0, 2000)
        cost.observe(4, 90_000)
    return cost


def test_busy_moment_does_not_prevent_drafts_for_good() -> None:
    """If drafts do not pay, none is made that could correct the estimate, so it is forgotten."""
    cost = cost_after_a_busy_moment()
    assert cost.nanoseconds(4) > 20 * cost.nanoseconds(0)
    for _ in range(40):
        cost.observe(0, 2000)
    for _ in range(400):
        cost.observe(0, 2000, by_choice=False)  # of a request without drafts
    assert cost.nanoseconds(4) > 20 * cost.nanoseconds(0)  # not at once
    for _ in range(400):
        cost.observe(0, 2000)
    assert cost.nanoseconds(4) == cost.nanoseconds(0)
    for _ in range(20):
        cost.observe(4, 2200)
    assert cost.nanoseconds(4) == pytest.approx(2200, rel=0.05)


def test_busy_moment_is_forgotten_in_shared_rounds() -> None:
    # Shared rounds let the estimate be forgotten, too.
    cost = cost_after_a_busy_moment()
    for _ in range(400):
        cost.observe(0, 2000, shared_timings(sessions=2, rows=2))
    assert cost.shared_overhead.nanoseconds(4) == cost.shared_overhead.nanoseconds(0)


def test_price_recovers_after_a_busy_moment() -> None:
    """On a quiet machine both kinds of rounds become cheaper, even if only one kind is run."""
    shared_overhead = VerifyOverhead()
    cost = VerifyCost(FLAT, shared_overhead=shared_overhead)
    for _ in range(40):
        cost.observe(0, 6000)
        cost.observe(4, 7000)
    for _ in range(80):
        cost.observe(4, 3000)
    for current in (cost, VerifyCost(FLAT, shared_overhead=shared_overhead)):
        assert current.nanoseconds(4) == pytest.approx(3000, rel=0.05)
        assert 2000 <= current.nanoseconds(0) <= 3500


def test_pace_without_drafts_fades_with_age() -> None:
    priced = controller(FLAT)
    for _ in range(20):
        priced.observe(nodes=0, emitted=1, round_ns=4000, used_draft_model=False)
    busy_rate = priced.prices.plain_rate
    for _ in range(40):
        priced.observe(nodes=4, emitted=2, round_ns=2000)
    assert busy_rate == pytest.approx(1 / 4000, rel=0.2)
    assert priced.prices.plain_rate == pytest.approx(1 / 1000, rel=0.2)


def test_first_slow_round_does_not_set_the_pace_without_drafts() -> None:
    plain = controller(FLAT)
    assert plain.prices.plain_rate == pytest.approx(1 / 1000)
    plain.observe(nodes=0, emitted=1, round_ns=4000, used_draft_model=False)
    assert plain.prices.plain_rate == pytest.approx(3 / 6000)
    for _ in range(100):
        plain.observe(nodes=0, emitted=1, round_ns=1100, used_draft_model=False)
    assert plain.prices.plain_rate == pytest.approx(1 / 1100, rel=0.03)


def test_free_drafts_are_as_deep_as_allowed() -> None:
    free = controller(FLAT).next_budget(100)
    assert (free.max_nodes, free.max_depth, free.least_path_probability) == (8, 8, 0.0)
    assert controller(FLAT).next_budget(3).max_depth == 3
    assert controller(STEEP, fixed=True).next_budget(100).max_depth == 8


def test_node_price_is_the_token_rate_of_its_time() -> None:
    # A node's price is the number of tokens that its time would bring in otherwise.
    priced = controller(SLOPING)
    assert priced.prices.node_price == pytest.approx(1 / 31)  # plain decoding: a token in 1000 ns
    for _ in range(50):
        priced.observe(nodes=1, emitted=4, round_ns=1000)
    assert priced.next_budget(100).least_path_probability == pytest.approx(4 / 31, rel=0.01)
    assert priced.next_budget(100).tokens_per_second == pytest.approx(4e6, rel=0.01)


def test_least_path_probability_is_at_most_one() -> None:
    """However expensive a node is: the value is sent over the wire as a probability."""
    plan = controller(STEEP)
    for _ in range(50):
        plan.observe(nodes=1, emitted=4, round_ns=1000)
    assert plan.prices.node_price > 1
    assert plan.next_budget(100).least_path_probability == 1


def test_round_with_an_empty_model_draft_does_not_count_as_plain() -> None:
    # Its time includes drafting, so it says nothing about the pace of plain decoding.
    plan = controller(FLAT)
    for _ in range(20):
        plan.observe(nodes=0, emitted=1, round_ns=100_000, used_draft_model=True)
    assert plan.prices.plain_rate == pytest.approx(1 / 1000)


def test_one_long_accepted_draft_does_not_set_the_pace() -> None:
    """One long draft used to set too high a node price; rounds without a draft did not count."""
    plan = controller(SLOPING)
    plan.observe(nodes=32, emitted=33, round_ns=2000, used_draft_model=False)
    first_price = plan.prices.node_price
    for _ in range(8):
        plan.observe(nodes=0, emitted=1, round_ns=1000, used_draft_model=False)
    assert plan.prices.node_price < 0.4 * first_price
    assert plan.prices.rate == pytest.approx(41 / 10_000, rel=0.2)


def test_fixed_size_ignores_prices() -> None:
    plan = controller(STEEP, fixed=True)
    for _ in range(20):
        plan.observe(nodes=2, emitted=2, round_ns=900_000)
    assert plan.worth() == 1 and plan.worth(Offer(tokens=1.5, nodes=8)) == 2.5


def test_no_draft_without_room() -> None:
    assert controller(FLAT, fixed=True).next_budget(0).max_nodes == 0


def test_figures_add_up() -> None:
    figures = SpeculationFigures()
    assert figures.tokens_per_round == 0
    tree = DraftTree.chain([1, 2, 3], TokenSource.DRAFT_MODEL)
    for accepted in (3, 1, 0):
        emitted = tuple(range(1, accepted + 2))
        verdict = Verdict(tuple(range(accepted)), emitted, emitted[0], (0, 0, 0))
        figures.observe(Draft(tree=tree, committed_length=0), verdict, len(emitted))
    assert figures.accepted_per_position == [2, 1, 1]
    assert sum(figures.accepted_per_position) == figures.accepted_tokens == 4
    assert figures.draft_tokens == 9
    assert figures.tokens_per_round == pytest.approx(7 / 3)
    assert figures.drafted_by_source == {TokenSource.DRAFT_MODEL: 9}
    assert figures.accepted_by_source == {TokenSource.DRAFT_MODEL: 4}


def test_failed_replica_backs_off_longer_until_it_works() -> None:
    replica = Replica("nowhere:1", channel=None)
    replica.record_failure()
    first = replica.resting_until
    replica.record_failure()
    assert replica.is_resting and replica.resting_until > first
    replica.record_success()
    assert not replica.is_resting and replica.failures == 0
    for _ in range(2000):  # as in hours of failures only
        replica.record_failure()
    assert replica.is_resting


def test_request_limit_is_enforced_and_released() -> None:
    limit = RequestLimit(1)
    with limit.admit(), pytest.raises(Overloaded), limit.admit():
        pass
    with limit.admit():
        assert limit.running == 1
    assert limit.running == 0


def test_requests_admitted_together_are_released_together() -> None:
    limit = RequestLimit(4)
    with limit.admit(3), pytest.raises(Overloaded), limit.admit(2):
        pass
    assert limit.running == 0
