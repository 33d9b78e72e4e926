"""Which replica knows the prefix of a text."""

from __future__ import annotations

from orchestrator.prefix_index import BLOCK_TOKENS, MAX_BLOCKS, PrefixIndex


def place_of(index: PrefixIndex[str], tokens: list[int], group: str) -> str | None:
    return index.find(tokens, group)[0]


CHAT = list(range(5 * BLOCK_TOKENS))


def test_replica_with_the_longest_prefix_is_found() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.note(CHAT, "", "first")
    index.note(CHAT[: 2 * BLOCK_TOKENS] + [7] * BLOCK_TOKENS, "", "second")
    assert index.find([*CHAT, 3], "") == ("first", len(CHAT))
    assert place_of(index, CHAT[: 3 * BLOCK_TOKENS], "") == "first"
    # It was there last.
    assert place_of(index, CHAT[: 2 * BLOCK_TOKENS] + [9] * BLOCK_TOKENS, "") == "second"
    assert place_of(index, [*CHAT[:-1], 3], "") == "first"


def test_prefix_shorter_than_a_block_is_ignored() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.note(CHAT[: BLOCK_TOKENS - 1], "", "here")
    assert place_of(index, CHAT, "") is None and place_of(index, [], "") is None
    index.note(CHAT, "", "here")
    assert place_of(index, CHAT[: BLOCK_TOKENS - 1], "") is None
    assert place_of(index, [5, *CHAT], "") is None


def test_prefixes_are_not_shared_between_groups() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.note(CHAT, "a", "here")
    assert place_of(index, CHAT, "a") == "here" and place_of(index, CHAT, "b") is None


def test_least_recently_used_prefix_is_evicted() -> None:
    index: PrefixIndex[str] = PrefixIndex(max_prefixes=10)
    index.note(CHAT, "", "old")
    index.note(CHAT, "a", "new")
    index.note(CHAT, "", "again")
    index.note(CHAT, "b", "newest")
    assert place_of(index, CHAT, "a") is None
    assert place_of(index, CHAT, "") == "again" and place_of(index, CHAT, "b") == "newest"


def test_prefixes_of_a_removed_replica_are_forgotten() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.note(CHAT, "", "gone")
    index.note(CHAT[: 2 * BLOCK_TOKENS], "", "here")
    index.forget("gone")
    assert index.find(CHAT, "") == ("here", 2 * BLOCK_TOKENS)


def test_beginning_of_a_truncated_text_is_found() -> None:
    """If there is no room for the whole text, its beginning is kept."""
    index: PrefixIndex[str] = PrefixIndex(max_prefixes=3)
    long = [1] * 8 * BLOCK_TOKENS
    index.note(long, "", "here")
    assert index.find(long, "") == ("here", 3 * BLOCK_TOKENS)


def test_recorded_blocks_of_a_text_are_bounded() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.note([1] * (MAX_BLOCKS + 2) * BLOCK_TOKENS, "", "here")
    assert index.find([1] * (MAX_BLOCKS + 2) * BLOCK_TOKENS, "") == (
        "here",
        MAX_BLOCKS * BLOCK_TOKENS,
    )
