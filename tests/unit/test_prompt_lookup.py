"""Prompt lookup against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftloop.prompt_lookup import ESTIMATES, MAX_CONTEXT, MIN_CONTEXT, PromptIndex
from draftloop.tree import TokenSource


def latest_continuation(text: list[int], count: int) -> tuple[int, list[int]]:
    """Brute force: longest suffix that occurred before, and what followed it last."""
    for size in range(min(MAX_CONTEXT, len(text)), MIN_CONTEXT - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                return size, text[end : end + count]
    return 0, []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 6), st.integers(0, 40))
def test_the_proposal_follows_the_longest_known_suffix(
    text: list[int], count: int, split: int
) -> None:
    index = PromptIndex()
    index.extend(text[:split])
    index.extend(text[split:])
    size, copied = latest_continuation(text, count)
    tree = index.propose(count)
    assert list(tree.token_ids) == copied
    assert set(tree.sources) <= {TokenSource.PROMPT_LOOKUP}
    if copied:
        assert tree.estimates == (ESTIMATES[size],) * len(copied)


def test_a_repetition_is_copied_on() -> None:
    index = PromptIndex()
    index.extend([1, 2, 3, 4, 5, 1, 2, 3])
    assert index.propose(3).token_ids == (4, 5, 1)
    index.extend([9])
    assert len(index.propose(3)) == 0
