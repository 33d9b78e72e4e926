"""The phrase index: always valid drafts, likelier text first, bounded memory."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.tree import ROOT, DraftBudget, DraftTree, TokenSource, Verdict
from phrase_store import growth
from phrase_store.counts import MAX_CONTINUATIONS
from phrase_store.index import Grown, PhraseIndex, grow, warm_up
from phrase_store.session import PhraseSession
from phrase_store.stops import stops_of
from phrase_store.table import WAYS
from tests.support.fresh_process import output_of

VOCABULARY = 6
MIB = 1 << 20
AMPLE = DraftBudget(max_nodes=8, max_depth=8)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def new_index(*texts: Sequence[int], max_bytes: int = MIB, **options: Any) -> PhraseIndex:
    index = PhraseIndex(max_bytes=max_bytes, **options)
    for text in texts:
        index.extend((), text)
    return index


def grown_draft(
    context: Sequence[int],
    *,
    shared: PhraseIndex | None = None,
    own: PhraseIndex | None = None,
    nodes: int = 8,
    depth: int = 8,
    least: float = 0.0,
    leaves: int | None = None,
    calibration: Calibration | None = None,
) -> Grown:
    budget = DraftBudget(max_nodes=nodes, max_depth=depth, least_path_probability=least)
    rates = calibration or Calibration()
    return grow(context, budget, shared=shared, own=own, calibration=rates, max_leaves=leaves)


def likeliest_token(
    context: Sequence[int], *, shared: PhraseIndex | None = None, own: PhraseIndex | None = None
) -> int:
    """The likeliest next token."""
    return grown_draft(context, shared=shared, own=own, nodes=1).tree.token_ids[0]


def leaves_of(tree: DraftTree) -> int:
    return len(set(range(len(tree))) - set(tree.parents))


texts = st.lists(st.integers(0, VOCABULARY - 1), max_size=60)
phrases = st.builds(
    Phrase,
    st.lists(st.integers(0, VOCABULARY - 1), max_size=MAX_CONTEXT).map(tuple),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5).map(tuple),
    st.booleans(),
)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """A calibration with arbitrary observations."""
    calibration = Calibration()
    sources = st.sampled_from([TokenSource.PHRASE, TokenSource.PROMPT_LOOKUP])
    for _ in range(draw(st.integers(0, 20))):
        accepted = (0,) if draw(st.booleans()) else ()
        verdict = Verdict(accepted, (0,), root_prediction=0)
        tree = DraftTree.chain([1], draw(sources))
        calibration.observe(tree, [draw(st.floats(0, 1))], verdict)
    return calibration


@settings(max_examples=200, deadline=None)
@given(
    own_text=texts,
    shared_text=texts,
    shared_phrases=st.lists(phrases, max_size=10),
    context=texts,
    nodes=st.integers(0, 24),
    depth=st.integers(0, 6),
    leaves=st.integers(1, 5) | st.none(),
    least=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    calibration=calibrations(),
    max_bytes=st.sampled_from([256, 4096, MIB]),
)
def test_drafts_are_valid_trees_within_their_budget(
    own_text: list[int],
    shared_text: list[int],
    shared_phrases: list[Phrase],
    context: list[int],
    nodes: int,
    depth: int,
    leaves: int | None,
    least: float,
    calibration: Calibration,
    max_bytes: int,
) -> None:
    own = new_index(own_text, max_bytes=max_bytes)
    shared = new_index(shared_text, max_bytes=max_bytes)
    shared.insert(shared_phrases)
    draft = grown_draft(
        context, shared=shared, own=own, nodes=nodes, depth=depth, least=least, leaves=leaves,
        calibration=calibration,
    )  # fmt: skip
    tree = draft.tree
    tree.validate(vocabulary_size=VOCABULARY, max_nodes=nodes)  # parents first; no NaN
    assert all(1 <= level <= depth for level in tree.depths())
    assert leaves is None or leaves_of(tree) <= leaves
    sums: dict[int, float] = {}
    for parent, estimate in zip(tree.parents, tree.estimates, strict=True):
        sums[parent] = sums.get(parent, 0.0) + estimate
    assert all(total <= 1 + 1e-9 for total in sums.values())
    reached = tree.path_probabilities()
    assert all(value >= least - 1e-9 for value in reached)
    assert all(math.isfinite(score) and 0 <= score <= 1 for score in draft.scores)
    assert len(draft.scores) == len(tree)
    if leaves is None:  # best first
        assert all(later <= earlier + 1e-9 for earlier, later in pairwise(reached))


def test_no_draft_without_known_phrases() -> None:
    assert len(grown_draft((1, 2)).tree) == 0
    assert len(grown_draft((1, 2), shared=new_index(), own=new_index()).tree) == 0
    assert len(grown_draft((), own=new_index([1, 2, 3])).tree) == 0
    assert len(grown_draft((8, 9), own=new_index([1, 2, 3])).tree) == 0


def test_no_draft_when_no_branches_are_allowed() -> None:
    assert len(grown_draft((1, 2), own=new_index([1, 2, 3]), leaves=0).tree) == 0


def test_integers_in_a_budget_trigger_no_compilation() -> None:
    """Compiling takes seconds, during which both indexes are locked."""
    compiled = list(cast(Any, growth.grow_into).signatures)
    assert len(grown_draft((1, 2), own=new_index([1, 2, 3]), least=0).tree) == 1
    assert len(PhraseSession([1, 2, 3, 1], 8, stop_token_ids={3}).propose([1], AMPLE)) == 2
    assert cast(Any, growth.grow_into).signatures == compiled


def test_drafts_end_at_stop_tokens_except_committed_ones() -> None:
    """Impossible continuations used to be promised as nearly certain and never corrected."""
    text = [1, 2, 3, 4, 5] * 6
    session = PhraseSession(text, 16, stop_token_ids={3, 9})
    assert session.propose(text, AMPLE).token_ids == (1, 2, 3)
    assert session.propose([*text, 1, 2, 3], AMPLE).token_ids == (4, 5, 1, 2, 3)
    assert len(PhraseSession(text, 16).propose(text, AMPLE)) == 8


@settings(max_examples=100, deadline=None)
@given(texts, texts, st.sets(st.integers(0, VOCABULARY - 1)))
def test_stop_tokens_remove_only_the_paths_after_them(
    text: list[int], context: list[int], stop_token_ids: set[int]
) -> None:
    budget, calibration = DraftBudget(max_nodes=400, max_depth=3), Calibration()
    index = new_index(text)

    def paths(stops: set[int]) -> set[tuple[int, ...]]:
        tree = grow(
            context, budget, shared=index, own=None, calibration=calibration, stops=stops_of(stops)
        ).tree
        return {tuple(tree.token_ids[at] for at in tree.path(node)) for node in range(len(tree))}

    all_paths, stopped = paths(set()), paths(stop_token_ids)
    assert stopped == {path for path in all_paths if not stop_token_ids & set(path[:-1])}


def test_longest_context_wins_when_certain() -> None:
    index = new_index()
    index.insert([Phrase((7, 1, 2), (5,))] * 10 + [Phrase((8, 1, 2), (6,))] * 50)
    assert likeliest_token((7, 1, 2), shared=index) == 5
    assert likeliest_token((8, 1, 2), shared=index) == 6
    assert likeliest_token((9, 1, 2), shared=index) == 6  # unknown: the shorter context decides


def test_long_context_seen_once_is_not_certain() -> None:
    index = new_index()
    index.insert([Phrase((7, 1, 2), (5,))] + [Phrase((1, 2), (6,))] * 50)
    assert max(grown_draft((7, 1, 2), shared=index).tree.estimates) < 0.9


def test_own_text_outweighs_shared_phrases_four_times() -> None:
    own = new_index([1, 2, 5])
    shared = new_index()
    shared.insert([Phrase((1, 2), (6,))] * 3)
    assert likeliest_token((1, 2), own=own, shared=shared) == 5
    shared.insert([Phrase((1, 2), (6,))] * 2)
    assert likeliest_token((1, 2), own=own, shared=shared) == 6


def test_sources_distinguish_own_text_and_shared_phrases() -> None:
    own, shared = new_index([1, 2, 5]), new_index([1, 2, 6])
    tree = grown_draft((1, 2), own=own, shared=shared, nodes=2, depth=1).tree
    sources = dict(zip(tree.token_ids, tree.sources, strict=True))
    assert sources == {5: TokenSource.PROMPT_LOOKUP, 6: TokenSource.PHRASE}


def test_second_guess_restarts_the_run() -> None:
    """A second guess is right only if the first one was wrong."""
    index = new_index([1, 2, 5], [1, 2, 5], [1, 3, 6])
    draft = grown_draft((1,), shared=index)
    runs = dict(zip(draft.tree.token_ids, draft.runs, strict=True))
    assert runs == {2: 1, 3: 1, 5: 2, 6: 1}


def test_predictions_count_less_than_text() -> None:
    index = new_index()
    index.insert([Phrase((1,), (6,)), Phrase((1,), (5,), committed=False)])
    assert likeliest_token((1,), shared=index) == 6
    index.insert([Phrase((1,), (5,), committed=False)] * 2)
    assert likeliest_token((1,), shared=index) == 5


def test_lower_token_wins_ties() -> None:
    for order in ([3, 4], [4, 3]):
        index = new_index(half_life_tokens=10**18)
        index.insert([Phrase((1,), (token,)) for token in order])
        assert likeliest_token((1,), shared=index) == 3
        index = new_index()  # where counts decay, the later one is slightly ahead
        index.insert([Phrase((1,), (token,)) for token in order])
        assert likeliest_token((1,), shared=index) == order[1]


def test_faded_counts_give_low_scores() -> None:
    """Two faint counts of one context used to make each other certain."""
    index = new_index(half_life_tokens=100)
    index.insert([Phrase((1,), (2,)), Phrase((1,), (3,))])
    index.extend((), [50 + number % 40 for number in range(2100)])
    assert max(grown_draft((1,), shared=index).scores, default=0.0) < 0.05


def test_counts_decay() -> None:
    """Recent observations outweigh old ones."""
    index = new_index(half_life_tokens=100)
    index.insert([Phrase((1, 2), (5,))] * 3)
    index.insert([Phrase((1, 2), (6,))])
    assert likeliest_token((1, 2), shared=index) == 5
    index.extend((), range(100, 1100))
    index.insert([Phrase((1, 2), (6,))])
    assert likeliest_token((1, 2), shared=index) == 6


def test_decayed_count_is_not_restored_by_one_repetition() -> None:
    # Counting an old continuation once more does not bring back its old counts.
    index = new_index(half_life_tokens=100)
    index.insert([Phrase((1, 2), (5,))] * 8)
    index.extend((), range(100, 2100))
    index.insert([Phrase((1, 2), (token,)) for token in (5, 6, 6, 6)])
    assert likeliest_token((1, 2), shared=index) == 6


@pytest.mark.parametrize("max_bytes", [256, 4096])
def test_eviction_keeps_frequently_counted_phrases(max_bytes: int) -> None:
    index = new_index(max_bytes=max_bytes)
    rng = random.Random(1)
    frequent = Phrase((1,), (2,))
    for _ in range(4 * max_bytes // WAYS):
        index.insert([frequent] * 2)
        noise = Phrase((rng.randrange(100, 10**6),), (rng.randrange(10**6),))
        index.insert([noise])
    assert index.evictions > 0
    assert likeliest_token((1,), shared=index) == 2
    assert index.entries <= max_bytes // 16


def test_context_keeps_its_best_continuations() -> None:
    index = new_index()
    for token in range(20):
        index.insert([Phrase((1,), (token,))] * (2 if token in (3, 4) else 1))
    tokens = grown_draft((1,), shared=index, nodes=20, depth=1).tree.token_ids
    assert len(tokens) <= MAX_CONTINUATIONS and set(tokens[:2]) == {3, 4}


def test_number_of_continuations_per_context_is_bounded() -> None:
    index = new_index()
    index.insert([Phrase((1,), (token,)) for token in range(MAX_CONTINUATIONS + 3)])
    assert index.entries == MAX_CONTINUATIONS and index.evictions == 3


def test_cleared_index_is_empty_and_usable() -> None:
    index = new_index([1, 2, 3])
    index.clear()
    assert index.entries == 0 and len(grown_draft((1, 2), shared=index).tree) == 0
    index.extend((), [1, 2, 4])
    assert likeliest_token((1, 2), shared=index) == 4


@given(texts, st.integers(0, 60))
@settings(max_examples=50, deadline=None)
def test_text_in_pieces_gives_the_same_index(text: list[int], cut: int) -> None:
    whole, pieces = new_index(text), new_index(text[:cut])
    pieces.extend(text[:cut], text[cut:])
    assert grown_draft(text, own=whole) == grown_draft(text, own=pieces)


def test_prompt_lookup_copies_from_an_earlier_occurrence() -> None:
    """With a single branch and own text only, the index is prompt lookup."""
    text = [*range(50), 10, 11, 12]
    tree = grown_draft(text, own=new_index(text), leaves=1, nodes=6).tree
    assert tree.token_ids == (13, 14, 15, 16, 17, 18)
    assert tree.parents == (ROOT, 0, 1, 2, 3, 4)
    assert set(tree.sources) == {TokenSource.PROMPT_LOOKUP}


def test_prompt_lookup_follows_the_longest_match() -> None:
    text = [1, 2, 3, 7, 7, 5, 2, 3, 8, 8, 6, 1, 2, 3]
    assert grown_draft(text, own=new_index(text), leaves=1, nodes=2).tree.token_ids == (7, 7)


FRESH = """
from tests.unit import test_phrase_index as here
print(here.sample())
"""


def sample() -> str:
    """A draft after a text with many ties, from an index that had to evict entries."""
    rng = random.Random(5)
    text = [rng.randrange(8) for _ in range(3000)]
    return repr(grown_draft(text, shared=new_index(text, max_bytes=16384), nodes=16))


@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_makes_the_same_draft(seed: str) -> None:
    """Replicas that read the same log agree: nothing depends on Python's hash()."""
    assert output_of(FRESH, PYTHONHASHSEED=seed) == sample()
