"""The time of rounds beyond their forward passes: how it is estimated and forgotten."""

from __future__ import annotations

from draftloop.model_info import CostPoint
from draftloop.tree import ServiceTimings
from orchestrator.costs import FORGET_EVERY, VerifyCost, VerifyOverhead

DEAR, CHEAP = 90_000, 200


def observed(known: VerifyOverhead, *, drafted: int, added: float) -> None:
    """Observes `drafted` rounds with drafts, which take `added` longer than those without."""
    for _ in range(drafted):
        known.observe(4, 1000 + added)


def plain() -> VerifyOverhead:
    known = VerifyOverhead()
    for _ in range(40):
        known.observe(0, 1000)
    return known


def test_what_is_forgotten_is_what_drafts_added_first() -> None:
    """Otherwise the cheap drafts after a busy moment would be forgotten, not the expensive ones."""
    known = plain()
    observed(known, drafted=16, added=DEAR)
    observed(known, drafted=8, added=CHEAP)
    assert known.nanoseconds(4) > DEAR
    for _ in range(FORGET_EVERY * 16):
        known.observe(0, 1000)
    assert known.nanoseconds(4) == 1000 + CHEAP


def test_what_is_forgotten_is_believed_no_more() -> None:
    """If it prevents drafts, nothing else would ever correct it."""
    known = plain()
    observed(known, drafted=13, added=DEAR)
    for _ in range(FORGET_EVERY * 13):
        known.observe(0, 1000)
    assert known.nanoseconds(4) == known.nanoseconds(0) == 1000


def test_nothing_is_forgotten_while_drafts_are_made_now_and_then() -> None:
    known = plain()
    for _ in range(20):
        for _ in range(FORGET_EVERY - 1):
            known.observe(0, 1000)
        observed(known, drafted=1, added=CHEAP)
    assert len(known._drafted) == 20


def sized(rounds: int, small: float, large: float) -> VerifyOverhead:
    """Half of the drafts have two nodes and half have eight; they add `small` and `large`."""
    known = plain()
    for _ in range(rounds // 2):
        known.observe(2, 1000 + small)
        known.observe(8, 1000 + large)
    return known


def test_a_few_drafts_do_not_say_what_a_node_adds() -> None:
    assert sized(8, small=200, large=800).node_ns == 0
    assert sized(16, small=200, large=800).node_ns == 100


def test_no_node_saves_time() -> None:
    assert sized(16, small=800, large=200).node_ns == 0


def test_a_node_is_priced_anew_when_others_rows_come_and_go() -> None:
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1000), CostPoint(32, 3000)))
    for sessions, price in ((1, 0), (8, 125), (1, 0)):
        for _ in range(20):
            rows = ServiceTimings(batch_size=sessions, batch_rows=1 if sessions == 1 else 16)
            cost.load.observe(1, rows)
        assert cost.node_nanoseconds(0, 16) == price
