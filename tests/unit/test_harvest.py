"""Harvest: every phrase is the target's continuation of one text, and none is lost."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase
from draftloop.request import SamplingParameters
from draftloop.runtime.acceptance import accept
from draftloop.runtime.sampling import Sampler
from draftloop.tree import EMPTY_TREE, ROOT, DraftTree, TokenSource, Verdict
from phrase_store.harvest import harvest
from tests.support.toy_model import TableModel

# Texts so short that a phrase's context is the whole text, which identifies its node.
COMMITTED = (3, 1)
MAX_DEPTH = MAX_CONTEXT - len(COMMITTED)
CHAIN = TokenSource.DRAFT_MODEL


@st.composite
def trees(draw: st.DrawFn, *, vocabulary: int = 4, max_nodes: int = 12) -> DraftTree:
    """Any tree with distinct siblings over a small vocabulary and mixed sources."""
    nodes: dict[tuple[int, int], int] = {}
    depths: list[int] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, len(nodes) - 1))
        depth = 1 if parent == ROOT else depths[parent] + 1
        place = (parent, draw(st.integers(0, vocabulary - 1)))
        if depth <= MAX_DEPTH and place not in nodes:
            nodes[place] = len(nodes)
            depths.append(depth)
    sources = st.sampled_from([TokenSource.PHRASE, CHAIN, TokenSource.LOOKAHEAD])
    return DraftTree(
        token_ids=tuple(token for _, token in nodes),
        parents=tuple(parent for parent, _ in nodes),
        estimates=(0.5,) * len(nodes),
        sources=tuple(draw(sources) for _ in nodes),
    )


class Target:
    """A scripted target that samples: its tokens after any text."""

    def __init__(self, seed: int, temperature: float = 1.0) -> None:
        self._table = TableModel(seed=seed)
        parameters = SamplingParameters(temperature=temperature, seed=seed)
        self._sampler = Sampler(parameters, self._table.vocabulary_size, torch.device("cpu"))
        self._sampler.observe_prompt(COMMITTED)

    def verdict(self, tree: DraftTree, stop: set[int]) -> Verdict:
        return self._table.verify(self._sampler, COMMITTED, tree, sorted(stop))

    def says(self, text: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Its next tokens after `text`, one at a time; `text` begins with the committed tokens."""
        predicted: tuple[int, ...] = ()
        for _ in range(count):
            path = (*text[len(COMMITTED) :], *predicted)
            prefix = (*COMMITTED, *path)
            logits = self._table.logits(prefix)[None]
            predicted += (self._sampler.choose(logits, [len(prefix)], [path])[0],)
        return predicted


cases = given(
    trees(),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0]),
    st.sets(st.integers(0, 3), max_size=1),
)


@settings(max_examples=150, deadline=None)
@cases
def test_phrases_match_the_targets_decoding(
    tree: DraftTree, seed: int, temperature: float, stop: set[int]
) -> None:
    """The reference mixes conditions in a corrected suffix: its later tokens have another past."""
    target = Target(seed, temperature)
    for phrase in harvest(COMMITTED, tree, target.verdict(tree, stop), stop):
        assert phrase.context[: len(COMMITTED)] == COMMITTED
        assert phrase.tokens == target.says(phrase.context, len(phrase.tokens))


@settings(max_examples=150, deadline=None)
@cases
def test_every_prediction_of_the_target_is_harvested(
    tree: DraftTree, seed: int, temperature: float, stop: set[int]
) -> None:
    tree = replace(tree, sources=(CHAIN,) * len(tree))
    verdict = Target(seed, temperature).verdict(tree, stop)
    texts = [phrase.context + phrase.tokens for phrase in harvest(COMMITTED, tree, verdict, stop)]
    for node, prediction in enumerate(verdict.node_predictions):
        path = tuple(tree.token_ids[index] for index in tree.path(node))
        if stop.isdisjoint(path):
            text = (*COMMITTED, *path, prediction)
            assert any(harvested[: len(text)] == text for harvested in texts)


@settings(max_examples=150, deadline=None)
@cases
def test_stop_tokens_end_phrases_and_are_not_in_contexts(
    tree: DraftTree, seed: int, temperature: float, stop: set[int]
) -> None:
    """The reference code emits and keeps tokens after the end-of-text token."""
    verdict = Target(seed, temperature).verdict(tree, stop)
    for phrase in harvest(COMMITTED, tree, verdict, stop):
        assert stop.isdisjoint((*phrase.context[len(COMMITTED) :], *phrase.tokens[:-1]))


@settings(max_examples=100, deadline=None)
@cases
def test_phrases_are_distinct_and_exactly_one_is_committed(
    tree: DraftTree, seed: int, temperature: float, stop: set[int]
) -> None:
    verdict = Target(seed, temperature).verdict(tree, stop)
    phrases = harvest(COMMITTED, tree, verdict, stop)
    assert [phrase.committed for phrase in phrases] == [True] + [False] * (len(phrases) - 1)
    assert phrases[0] == Phrase(COMMITTED, verdict.emitted_token_ids)
    assert len(set(phrases)) == len(phrases)


def test_runs_of_any_length_are_kept() -> None:
    """The reference keeps runs of exactly N - 1 tokens, so it learns nothing from short drafts."""
    tree = DraftTree.chain([5, 6, 7], CHAIN)
    lengths = set()
    for agreeing in range(3):
        predictions = [6, 7, 8][:agreeing] + [40 + place for place in range(agreeing, 3)]
        verdict = accept(tree, 1, predictions)
        first = harvest((), tree, verdict)[1]
        assert first == Phrase((5,), tuple(predictions[: agreeing + 1]), committed=False)
        lengths.add(len(first.tokens))
    assert lengths == {1, 2, 3}


def test_rejected_branch_is_harvested_up_to_its_first_correction() -> None:
    """After `5` the target predicts 9 and the draft has 6: the nodes below 6 do not follow 9."""
    tree = DraftTree.chain([5, 6, 7], CHAIN)
    verdict = accept(tree, 1, [9, 7, 8])
    assert harvest((2,), tree, verdict) == [
        Phrase((2,), (1,)),
        Phrase((2, 5), (9,), committed=False),
        Phrase((2, 5, 6), (7, 8), committed=False),  # where draft and target agree again
    ]


def test_fully_accepted_draft_keeps_its_bonus_token() -> None:
    """The reference code loses the token after a phrase or suffix that matched to its end."""
    tree = DraftTree.chain([5, 6], CHAIN)
    assert harvest((2,), tree, accept(tree, 5, [6, 7])) == [Phrase((2,), (5, 6, 7))]
    rejected = accept(tree, 1, [6, 7])  # a match to the end of a branch that was not accepted
    assert harvest((2,), tree, rejected)[1] == Phrase((2, 5), (6, 7), committed=False)


def test_tokens_after_the_end_of_the_text_are_not_harvested() -> None:
    tree = DraftTree.chain([5, 9, 6, 9], CHAIN)
    committed = harvest((2,), tree, accept(tree, 5, [9, 6, 9, 1], {9}), {9})
    assert committed == [Phrase((2,), (5, 9))]
    rejected = harvest((2,), tree, accept(tree, 1, [9, 6, 9, 1], {9}), {9})
    assert rejected[1:] == [Phrase((2, 5), (9,), committed=False)]


def test_the_first_tokens_of_a_text_are_harvested() -> None:
    """The reference truncates output on prompts of 1 to 3 tokens."""
    for context in ((), (2,), (2, 3)):
        assert harvest(context, EMPTY_TREE, accept(EMPTY_TREE, 4, [])) == [Phrase(context, (4,))]


def test_siblings_are_harvested_under_their_own_context() -> None:
    tree = DraftTree((5, 6, 7), (ROOT, ROOT, 1), (0.5,) * 3, (CHAIN,) * 3)
    verdict = accept(tree, 5, [1, 2, 3])
    assert harvest((), tree, verdict) == [
        Phrase((), (5, 1)),
        Phrase((6,), (2,), committed=False),
        Phrase((6, 7), (3,), committed=False),
    ]


def test_lookahead_window_is_not_harvested() -> None:
    # Predictions after a window's guesses are no phrases, because no text leads there.
    tree = DraftTree.chain([5, 6], TokenSource.LOOKAHEAD)
    assert harvest((), tree, accept(tree, 1, [2, 3])) == [Phrase((), (1,))]
    assert harvest((), tree, accept(tree, 5, [6, 3])) == [Phrase((), (5, 6, 3))]  # unless accepted


def test_verdict_without_predictions_yields_the_committed_phrase() -> None:
    tree = DraftTree.chain([5, 6], CHAIN)
    verdict = Verdict((), (1,), root_prediction=1)
    assert harvest((4,), tree, verdict) == [Phrase((4,), (1,))]


def test_no_phrase_without_emitted_tokens() -> None:
    assert harvest((4,), EMPTY_TREE, Verdict((), (), root_prediction=1)) == []


def test_contexts_and_phrases_are_bounded() -> None:
    long = tuple(range(100, 200))
    tree = DraftTree.chain(long, CHAIN)
    accepted = harvest(long, tree, accept(tree, 100, [*long[1:], 7]))
    bounded, rest = long[:MAX_PHRASE_TOKENS], (*long[MAX_PHRASE_TOKENS:], 7)
    assert (
        accepted
        == [  # including the bonus token 7
            Phrase(long[-MAX_CONTEXT:], bounded),
            Phrase(bounded[-MAX_CONTEXT:], rest),
        ]
    )
    rejected = harvest(long, tree, accept(tree, 1, [*long[1:], 7]))[1]
    assert rejected.context == (*long[-MAX_CONTEXT + 1 :], 100)
    assert rejected.tokens == long[1 : MAX_PHRASE_TOKENS + 1]
