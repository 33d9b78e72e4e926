"""Which replica knows a beginning."""

from __future__ import annotations

from orchestrator.beginnings import BLOCK, Beginnings

CHAT = list(range(5 * BLOCK))


def test_the_longest_beginning_counts() -> None:
    known: Beginnings[str] = Beginnings()
    known.note(CHAT, "", "first")
    known.note(CHAT[: 2 * BLOCK] + [7] * BLOCK, "", "second")
    assert known.place_of([*CHAT, 3], "") == "first"
    assert known.place_of(CHAT[: 3 * BLOCK], "") == "first"
    assert known.place_of(CHAT[: 2 * BLOCK] + [9] * BLOCK, "") == "second"  # it was there last
    assert known.place_of([*CHAT[:-1], 3], "") == "first"


def test_less_than_a_block_is_none() -> None:
    known: Beginnings[str] = Beginnings()
    known.note(CHAT[: BLOCK - 1], "", "here")
    assert known.place_of(CHAT, "") is None and known.place_of([], "") is None
    known.note(CHAT, "", "here")
    assert known.place_of(CHAT[: BLOCK - 1], "") is None
    assert known.place_of([5, *CHAT], "") is None


def test_groups_know_nothing_of_each_other() -> None:
    known: Beginnings[str] = Beginnings()
    known.note(CHAT, "a", "here")
    assert known.place_of(CHAT, "a") == "here" and known.place_of(CHAT, "b") is None


def test_what_was_of_no_use_for_longest_is_forgotten() -> None:
    known: Beginnings[str] = Beginnings(most=10)
    known.note(CHAT, "", "old")
    known.note(CHAT, "a", "new")
    known.note(CHAT, "", "again")
    known.note(CHAT, "b", "newest")
    assert known.place_of(CHAT, "a") is None
    assert known.place_of(CHAT, "") == "again" and known.place_of(CHAT, "b") == "newest"
