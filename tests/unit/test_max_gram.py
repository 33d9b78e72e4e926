"""Max-gram: copies after the longest known suffix, then bigrams; equal to a naive search."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from draftloop.max_gram import MAX_COPIED, MAX_SUFFIX, MaxGram

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def naive_proposal(
    text: Sequence[int], tail: Sequence[int], most: int, stops: Sequence[int]
) -> list[tuple[int, float]]:
    """The definition, by searching the whole text for every token; tokens and scores."""
    written = [*text, *tail]
    matches = [
        (length, index)
        for index in range(1, len(text))
        for length in range(1, min(MAX_SUFFIX, index, len(written)) + 1)
        if list(text[index - length : index]) == written[len(written) - length :]
    ]
    if not matches:
        return []
    matched, source = max(matches)
    proposed: list[tuple[int, float]] = []
    while len(proposed) < most and not (proposed and proposed[-1][0] in stops):
        if len(proposed) < MAX_COPIED:
            token, score = written[source + len(proposed)], matched / (matched + 1)
        else:
            pairs = list(zip(text, text[1:], strict=False))
            earlier = [index for index, pair in enumerate(pairs) if pair[0] == written[-1]]
            if not earlier:
                break
            token = pairs[max(earlier, key=lambda index: (pairs.count(pairs[index]), index))][1]
            score = pairs.count((written[-1], token)) / (len(earlier) + 1)
        proposed.append((token, score))
        written.append(token)
    return proposed


@given(TOKENS, TOKENS, st.lists(st.integers(0, 3), max_size=12), st.integers(0, 25))
def test_proposal_matches_a_naive_search(
    prompt: list[int], output: list[int], tail: list[int], most: int
) -> None:
    max_gram = MaxGram(prompt, stop_token_ids=[3])
    for token in output:
        max_gram.extend([token])
    proposed = max_gram.propose(tail, most)
    assert proposed == naive_proposal([*prompt, *output], tail, most, [3])
    assert all(0 < score < 1 for _, score in proposed)


def test_self_repeating_texts_match_a_naive_search() -> None:
    """These texts repeat long runs, which short random texts rarely do."""
    rng = random.Random(5)
    for size in (2, 4, 9):
        text = rng.choices(range(size), k=20)
        for _ in range(12):
            start = rng.randrange(len(text))
            text += [
                *text[start : start + rng.randrange(1, 15)],
                rng.randrange(size),
            ]
        max_gram = MaxGram([])
        for end, token in enumerate(text, start=1):
            max_gram.extend([token])
            start = rng.randrange(len(text))
            tail = text[start : start + rng.randrange(10)]
            assert max_gram.propose(tail, 12) == naive_proposal(text[:end], tail, 12, [])


def test_memory_is_one_entry_per_token() -> None:
    """Entries per run took 1.3 KB per token: 160 MiB for a session of 128k tokens."""
    text = random.Random(6).choices(range(50_000), k=8192)
    tracemalloc.start()
    max_gram = MaxGram(text)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(max_gram) == len(text) and allocated < 500 * len(text)


def test_longest_suffix_wins_over_a_later_shorter_one() -> None:
    max_gram = MaxGram([1, 2, 3, 50, 9, 3, 60, 1, 2])
    assert max_gram.propose([3], 1) == [(50, 3 / 4)]


def test_copies_ten_tokens_and_continues_with_bigrams() -> None:
    text = [*range(100, 114), 110, 200, 110, 200, 110, 100]
    tokens = [token for token, _ in MaxGram(text).propose([], 13)]
    assert tokens == [*range(101, 111), 200, 110, 200]


def test_periodic_text_continues_beyond_its_end() -> None:
    assert [token for token, _ in MaxGram([7, 8, 9, 7, 8, 9]).propose([], 7)] == [7, 8, 9] * 2 + [7]


def test_no_proposal_after_stop_or_unknown_tokens() -> None:
    max_gram = MaxGram([1, 0, 5, 6, 1], stop_token_ids=[0])
    assert [token for token, _ in max_gram.propose([], 8)] == [0]
    assert max_gram.propose([77], 8) == []
    assert MaxGram([]).propose([], 8) == []


def test_bigrams_end_at_a_stop_token() -> None:
    text = [*range(100, 111), 0, 100]
    tokens = [token for token, _ in MaxGram(text, stop_token_ids=[0]).propose([], 20)]
    assert tokens == [*range(101, 111), 0]
