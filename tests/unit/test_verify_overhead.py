"""The time of rounds beyond their forward passes: how it is estimated and forgotten."""

from __future__ import annotations

from draftloop.model_info import CostPoint
from draftloop.tree import ServiceTimings
from orchestrator.costs import FORGET_EVERY, VerifyCost, VerifyOverhead

DEAR, CHEAP = 90_000, 200


def observe_drafts(overhead: VerifyOverhead, *, drafted: int, added: float) -> None:
    """Observes `drafted` rounds with drafts, which take `added` longer than those without."""
    for _ in range(drafted):
        overhead.observe(4, 1000 + added)


def overhead_without_drafts() -> VerifyOverhead:
    overhead = VerifyOverhead()
    for _ in range(40):
        overhead.observe(0, 1000)
    return overhead


def test_oldest_draft_overheads_are_forgotten_first() -> None:
    """Otherwise the cheap drafts after a busy moment would be forgotten, not the expensive ones."""
    overhead = overhead_without_drafts()
    observe_drafts(overhead, drafted=16, added=DEAR)
    observe_drafts(overhead, drafted=8, added=CHEAP)
    assert overhead.nanoseconds(4) > DEAR
    for _ in range(FORGET_EVERY * 16):
        overhead.observe(0, 1000)
    assert overhead.nanoseconds(4) == 1000 + CHEAP


def test_forgotten_overhead_no_longer_counts() -> None:
    """If the overhead prevents drafts, only forgetting can correct it."""
    overhead = overhead_without_drafts()
    observe_drafts(overhead, drafted=13, added=DEAR)
    for _ in range(FORGET_EVERY * 13):
        overhead.observe(0, 1000)
    assert overhead.nanoseconds(4) == overhead.nanoseconds(0) == 1000


def test_overhead_is_kept_while_drafts_are_made_occasionally() -> None:
    overhead = overhead_without_drafts()
    for _ in range(20):
        for _ in range(FORGET_EVERY - 1):
            overhead.observe(0, 1000)
        observe_drafts(overhead, drafted=1, added=CHEAP)
    assert len(overhead._drafted) == 20


def overhead_of_two_sizes(rounds: int, small: float, large: float) -> VerifyOverhead:
    """Half of the drafts have two nodes and half have eight; they add `small` and `large`."""
    overhead = overhead_without_drafts()
    for _ in range(rounds // 2):
        overhead.observe(2, 1000 + small)
        overhead.observe(8, 1000 + large)
    return overhead


def test_node_overhead_requires_enough_drafts() -> None:
    assert overhead_of_two_sizes(8, small=200, large=800).node_ns == 0
    assert overhead_of_two_sizes(16, small=200, large=800).node_ns == 100


def test_node_overhead_is_never_negative() -> None:
    assert overhead_of_two_sizes(16, small=800, large=200).node_ns == 0


def test_node_price_follows_rows_of_other_sessions() -> None:
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1000), CostPoint(32, 3000)))
    for sessions, price in ((1, 0), (8, 125), (1, 0)):
        for _ in range(20):
            rows = ServiceTimings(batch_size=sessions, batch_rows=1 if sessions == 1 else 16)
            cost.load.observe(1, rows)
        assert cost.node_nanoseconds(0, 16) == price
