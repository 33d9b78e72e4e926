"""Which replica knows the prefix of a text."""

from __future__ import annotations

from orchestrator.beginnings import BLOCK_TOKENS, MAX_BLOCKS, PrefixIndex


def place_of(known: PrefixIndex[str], tokens: list[int], group: str) -> str | None:
    return known.find(tokens, group)[0]


CHAT = list(range(5 * BLOCK_TOKENS))


def test_replica_with_the_longest_prefix_is_found() -> None:
    known: PrefixIndex[str] = PrefixIndex()
    known.note(CHAT, "", "first")
    known.note(CHAT[: 2 * BLOCK_TOKENS] + [7] * BLOCK_TOKENS, "", "second")
    assert known.find([*CHAT, 3], "") == ("first", len(CHAT))
    assert place_of(known, CHAT[: 3 * BLOCK_TOKENS], "") == "first"
    # It was there last.
    assert place_of(known, CHAT[: 2 * BLOCK_TOKENS] + [9] * BLOCK_TOKENS, "") == "second"
    assert place_of(known, [*CHAT[:-1], 3], "") == "first"


def test_prefix_shorter_than_a_block_is_ignored() -> None:
    known: PrefixIndex[str] = PrefixIndex()
    known.note(CHAT[: BLOCK_TOKENS - 1], "", "here")
    assert place_of(known, CHAT, "") is None and place_of(known, [], "") is None
    known.note(CHAT, "", "here")
    assert place_of(known, CHAT[: BLOCK_TOKENS - 1], "") is None
    assert place_of(known, [5, *CHAT], "") is None


def test_prefixes_are_not_shared_between_groups() -> None:
    known: PrefixIndex[str] = PrefixIndex()
    known.note(CHAT, "a", "here")
    assert place_of(known, CHAT, "a") == "here" and place_of(known, CHAT, "b") is None


def test_least_recently_used_prefix_is_evicted() -> None:
    known: PrefixIndex[str] = PrefixIndex(max_prefixes=10)
    known.note(CHAT, "", "old")
    known.note(CHAT, "a", "new")
    known.note(CHAT, "", "again")
    known.note(CHAT, "b", "newest")
    assert place_of(known, CHAT, "a") is None
    assert place_of(known, CHAT, "") == "again" and place_of(known, CHAT, "b") == "newest"


def test_prefixes_of_a_removed_replica_are_forgotten() -> None:
    known: PrefixIndex[str] = PrefixIndex()
    known.note(CHAT, "", "gone")
    known.note(CHAT[: 2 * BLOCK_TOKENS], "", "here")
    known.forget("gone")
    assert known.find(CHAT, "") == ("here", 2 * BLOCK_TOKENS)


def test_beginning_of_a_truncated_text_is_found() -> None:
    """If there is no room for the whole text, its beginning is kept."""
    known: PrefixIndex[str] = PrefixIndex(max_prefixes=3)
    long = [1] * 8 * BLOCK_TOKENS
    known.note(long, "", "here")
    assert known.find(long, "") == ("here", 3 * BLOCK_TOKENS)


def test_recorded_blocks_of_a_text_are_bounded() -> None:
    known: PrefixIndex[str] = PrefixIndex()
    known.note([1] * (MAX_BLOCKS + 2) * BLOCK_TOKENS, "", "here")
    assert known.find([1] * (MAX_BLOCKS + 2) * BLOCK_TOKENS, "") == (
        "here",
        MAX_BLOCKS * BLOCK_TOKENS,
    )
