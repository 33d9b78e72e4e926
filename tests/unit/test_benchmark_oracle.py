"""The oracle on scripted candidates: what a perfect selector accepts, and the speed of that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.candidates import Phrases, Ranked, Recycled, index_of
from benchmarks.oracle import Costs, bounds, merged
from benchmarks.perfect_tree import PerfectRound, cheapest, perfect_rounds

TEXT = [1, 2, 3, 4, 5, 6, 7]
PROMPT_LENGTH = 1


class Scripted:
    """Offers the right token at some positions, at a cost in forwards, and records commits."""

    def __init__(self, known_positions: Sequence[int], forwards: int = 0) -> None:
        self.forwards = forwards
        self.commits: list[tuple[int, int]] = []
        self._known = known_positions

    def offers(self, position: int, width: int) -> Sequence[int]:
        return [TEXT[position]] if position in self._known else []

    def commit(self, start: int, end: int) -> None:
        self.commits.append((start, end))


def rounds(*sources: Scripted, depth: int = 9) -> list[PerfectRound]:
    return perfect_rounds(TEXT, PROMPT_LENGTH, sources, width=8, depth=depth)


def test_round_continues_while_a_source_offers_the_true_token() -> None:
    """The token that nothing offered is the bonus token of its round."""
    assert rounds(Scripted([1, 2, 4])) == [
        PerfectRound(2, 0),
        PerfectRound(1, 0),
        PerfectRound(0, 0),
    ]


def test_oracle_without_candidates_decodes_plainly() -> None:
    assert rounds(Scripted([])) == [PerfectRound(0, 0)] * 6


def test_oracle_emits_all_tokens_and_respects_the_depth() -> None:
    all_positions = range(len(TEXT))
    limited = rounds(Scripted(all_positions), depth=2)
    assert [entry.accepted for entry in limited] == [2, 2]
    assert sum(entry.tokens for entry in rounds(Scripted(all_positions))) == len(TEXT) - 1


def test_combined_sources_accept_more_and_free_ones_save_forwards() -> None:
    free, costly = Scripted([1, 3]), Scripted([1, 2], forwards=1)
    (first, *_) = rounds(free, costly)
    assert first == PerfectRound(accepted=3, forwards=1)
    assert cheapest([costly, free], 1, TEXT[1], 8) == 0
    assert cheapest([costly, free], 5, TEXT[5], 8) is None


def test_sources_are_updated_only_after_each_round() -> None:
    """Otherwise own text would be offered before it was written."""
    source = Scripted([1, 2, 4])
    rounds(source)
    assert source.commits == [(0, 1), (1, 4), (4, 6), (6, 7)]


def test_draft_model_offers_tokens_by_rank() -> None:
    assert Ranked([[], [5, 6, 7]]).offers(1, 2) == [5, 6]


def test_own_text_is_offered_after_commit() -> None:
    text = [1, 2, 3, 1, 2, 3]
    phrases = Phrases(text)
    phrases.commit(0, 2)
    assert 3 not in phrases.offers(5, 8)
    phrases.commit(2, 4)
    assert 3 in phrases.offers(5, 8)


def test_shared_phrases_are_offered() -> None:
    phrases = Phrases([1, 2], index_of([([1, 2, 9], 2)]))
    assert list(phrases.offers(2, 8)) == [9]


def test_recycled_successors_are_offered_after_the_same_token() -> None:
    text = [1, 2, 1, 2]
    recycled = Recycled(text, 1, [[2, 8], [1, 7], [2, 8]])
    assert recycled.offers(1, 2) == ()
    recycled.commit(0, 1)
    assert recycled.offers(1, 2) == (), "of the prompt no verdict tells"
    recycled.commit(1, 3)
    assert recycled.offers(3, 1) == [2] and recycled.offers(2, 2) == [1, 7]


def test_oracle_speed_follows_from_forward_costs() -> None:
    pair = {
        "verifier": {"forward_ms_by_tokens": {"1": 10.0, "2": 12.0, "4": 16.0}},
        "drafter": {"forward_ms_by_tokens": {"1": 2.0}},
    }
    costs = Costs.from_json(pair)
    assert costs.ratio([PerfectRound(0, 0)]) == 1
    # four tokens for a verification of four and two draft forwards, instead of four single ones
    assert costs.ratio([PerfectRound(3, 2)]) == pytest.approx(40 / 20)
    deep, shallow = [PerfectRound(1, 40)], [PerfectRound(0, 0)] * 2
    (bound,) = bounds({("all", 8, 1): shallow, ("all", 8, 2): deep}, {"x": costs}, "chat", 0.8, 1)
    assert (bound.depth, bound.ratio, bound.tokens_per_round) == (1, 1.0, 1.0)


def test_rounds_of_all_prompts_are_merged() -> None:
    one, two = [PerfectRound(1, 0)], [PerfectRound(2, 1)]
    assert merged([{("all", 1, 1): one}, {("all", 1, 1): two}]) == {("all", 1, 1): one + two}
