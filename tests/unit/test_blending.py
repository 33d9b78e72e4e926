"""Contexts predict the next token together (prediction by partial matching) and share room."""

from __future__ import annotations

import numpy as np
import pytest

from draftloop.calibration import Calibration, cell_of, count
from draftloop.phrase import Phrase
from draftloop.tree import DraftBudget, TokenSource
from phrase_store.growth import ESCAPES, PHRASE_NODE, best_end
from phrase_store.index import PhraseIndex, grow

CHILDREN = DraftBudget(max_nodes=8, max_depth=1)


def next_token_scores(index: PhraseIndex, *context: int) -> dict[int, float]:
    """The scores of the tokens that may come next."""
    drafted = grow(context, CHILDREN, shared=index, own=None, calibration=Calibration())
    return dict(zip(drafted.tree.token_ids, drafted.scores, strict=True))


def expected_trust(total: float, distinct: int, length: int) -> float:
    """The share of the remaining probability that a context of this length takes."""
    return total / (total + float(ESCAPES[length - 1]) * distinct)


def test_shorter_contexts_share_the_remaining_probability() -> None:
    """What followed three tokens was counted under their two- and one-token suffixes as well."""
    index = PhraseIndex(max_bytes=1 << 14, half_life_tokens=10**18)
    index.insert([Phrase((7, 1, 2), (5,))] * 2 + [Phrase((8, 1, 2), (6,))] * 2)
    longest = expected_trust(2, 1, 3)
    remaining = (1 - longest) * expected_trust(2, 1, 2)
    assert next_token_scores(index, 7, 1, 2) == pytest.approx({5: longest, 6: remaining}, rel=1e-3)
    both = expected_trust(4, 2, 2)
    assert next_token_scores(index, 9, 1, 2) == pytest.approx({5: both / 2, 6: both / 2}, rel=1e-3)


def test_context_leaves_its_remaining_probability_to_shorter_ones() -> None:
    index = PhraseIndex(max_bytes=1 << 14, half_life_tokens=10**18)
    index.insert([Phrase((1, 2), (5,)), *[Phrase((2,), (6,))] * 3])
    longest = expected_trust(1, 1, 2)
    remaining = (1 - longest) * expected_trust(3, 1, 1)
    assert next_token_scores(index, 1, 2) == pytest.approx({5: longest, 6: remaining}, rel=1e-3)


def test_single_occurrence_is_trusted_more_after_longer_contexts() -> None:
    for length, expected in ((1, 1 / 7), (6, 3 / 4)):
        index = PhraseIndex(max_bytes=1 << 14, half_life_tokens=10**18)
        context = tuple(range(length))
        index.insert([Phrase(context, (9,))])
        assert next_token_scores(index, *context) == pytest.approx({9: expected}, rel=0.01)


def test_context_with_many_continuations_evicts_no_other_contexts() -> None:
    """Other contexts keep their entries even in the same bucket, where theirs count less."""
    index = PhraseIndex(max_bytes=256, half_life_tokens=10**18)
    other_phrases = [Phrase((context,), (9,), committed=False) for context in range(100, 106)]
    index.insert(other_phrases)
    index.insert([Phrase((1,), (token,)) for token in range(20)])
    assert index.entries == len(other_phrases) + 8
    assert all(9 in next_token_scores(index, *phrase.context) for phrase in other_phrases)


@pytest.mark.parametrize(
    "ends",
    [
        ((9, 0, 1), (1, 5, 2)),  # token, parent and depth; the one to be taken first
        ((4, 6, 2), (5, 0, 2)),
        ((4, 2, 3), (4, 7, 3)),
    ],
)
def test_ties_are_broken_by_depth_then_token_then_parent(
    ends: tuple[tuple[int, int, int], ...],
) -> None:
    """Replicas that know the same draft the same, whatever the order of their tables."""
    for order in (ends, ends[::-1]):
        nodes = np.zeros(2, PHRASE_NODE)
        for place, (token, parent, depth) in enumerate(order):
            nodes[place]["token"], nodes[place]["parent"] = token, parent
            nodes[place]["depth"], nodes[place]["priority"] = depth, 0.25
        assert best_end(nodes, 2, True, np.zeros(9, np.bool_)) == order.index(ends[0])


def test_estimates_of_siblings_are_scaled_to_sum_to_one() -> None:
    """This happens when the text has changed: both were estimated as likelier than not."""
    index = PhraseIndex(max_bytes=1 << 14, half_life_tokens=10**18)
    index.insert([Phrase((1,), (token,)) for token in (5, 6)] * 9)
    calibration = Calibration()
    for hundredth in range(100):
        for _ in range(40):
            count(calibration, cell_of(TokenSource.PHRASE, hundredth / 100, 1), True)
    tree = grow((1,), CHILDREN, shared=index, own=None, calibration=calibration).tree
    assert tree.token_ids == (5, 6) and tree.estimates == pytest.approx((0.5, 0.5))
