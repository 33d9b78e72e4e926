"""Acceptance against its definition, and ladder L0: drafts never change the text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from draftloop.request import SamplingParameters
from draftloop.runtime.acceptance import accept
from draftloop.runtime.sampling import Sampler
from draftloop.tree import ROOT, DraftTree, TokenSource
from tests.support.toy_model import TableModel

CPU = torch.device("cpu")


@st.composite
def trees(draw: st.DrawFn, *, vocabulary: int = 4, max_nodes: int = 10) -> DraftTree:
    """Any tree with distinct siblings over a small vocabulary."""
    nodes: dict[tuple[int, int], None] = {}
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, len(nodes) - 1))
        nodes.setdefault((parent, draw(st.integers(0, vocabulary - 1))))
    return DraftTree(
        token_ids=tuple(token for _, token in nodes),
        parents=tuple(parent for parent, _ in nodes),
        estimates=(0.5,) * len(nodes),
        sources=(TokenSource.DRAFT_MODEL,) * len(nodes),
    )


def longest_agreeing_path(
    tree: DraftTree, root: int, predictions: list[int], stop: set[int]
) -> list[int]:
    """The definition: the longest path on which the target predicts every token."""
    best: list[int] = []
    for node in range(len(tree)):
        path = tree.path(node)
        predicted = [root, *(predictions[index] for index in path)]
        tokens = [tree.token_ids[index] for index in path]
        agrees = tokens == predicted[:-1] and not stop.intersection(tokens[:-1])
        if agrees and len(path) > len(best):
            best = path
    return best


@given(trees(), st.data())
def test_accept_takes_the_longest_agreeing_path_and_a_bonus_token(
    tree: DraftTree, data: st.DataObject
) -> None:
    token = st.integers(0, 3)
    root = data.draw(token)
    predictions = data.draw(st.lists(token, min_size=len(tree), max_size=len(tree)))
    stop = data.draw(st.sets(token, max_size=2))
    verdict = accept(tree, root, predictions, stop)
    path = longest_agreeing_path(tree, root, predictions, stop)
    tokens = [tree.token_ids[node] for node in path]
    assert list(verdict.accepted_nodes) == path
    stopped_inside = bool(tokens) and tokens[-1] in stop
    bonus = predictions[path[-1]] if path else root
    assert list(verdict.emitted_token_ids) == (tokens if stopped_inside else [*tokens, bonus])
    assert verdict.stopped == (verdict.emitted_token_ids[-1] in stop)
    assert len(verdict.emitted_sources(tree)) == len(verdict.emitted_token_ids)


def test_stop_token_inside_a_draft_ends_the_text() -> None:
    tree = DraftTree.chain([1, 9, 2], TokenSource.PHRASE)
    verdict = accept(tree, 1, [9, 2, 3], {9})
    assert verdict.emitted_token_ids == (1, 9)
    assert verdict.accepted_nodes == (0, 1)
    assert verdict.stopped
    assert verdict.emitted_sources(tree) == [TokenSource.PHRASE] * 2


def test_fully_accepted_draft_emits_the_bonus_token() -> None:
    tree = DraftTree.chain([1, 2], TokenSource.DRAFT_MODEL)
    verdict = accept(tree, 1, [2, 7], ())
    assert verdict.emitted_token_ids == (1, 2, 7)
    assert verdict.emitted_sources(tree)[-1] == TokenSource.TARGET


samplings = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 2, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([(), ((1, 2.0), (2, -1.0))]),
    seed=st.integers(0, 2**64 - 1),
)


def new_sampler(parameters: SamplingParameters, prompt: list[int], size: int = 4) -> Sampler:
    sampler = Sampler(parameters, size, CPU)
    sampler.observe_prompt(prompt)
    return sampler


@settings(max_examples=80, deadline=None)
@given(samplings, st.integers(0, 10**6), st.sets(st.integers(0, 3), max_size=1), st.data())
def test_output_with_any_drafts_equals_plain_decoding(
    parameters: SamplingParameters, table_seed: int, stop: set[int], data: st.DataObject
) -> None:
    """L0 (a): rounds over trees of right and wrong tokens give the text of plain decoding."""
    table, prompt, length = TableModel(seed=table_seed), [3, 1], 9
    plain = list(prompt)
    sampler = new_sampler(parameters, prompt)
    stopped = False
    while len(plain) < length and not stopped:
        verdict = table.verify(sampler, plain, DraftTree(), list(stop))
        sampler.observe_output(verdict.emitted_token_ids)
        plain += verdict.emitted_token_ids
        stopped = verdict.stopped

    text = list(prompt)
    sampler = new_sampler(parameters, prompt)
    stopped = False
    while len(text) < length and not stopped:
        correct = plain[len(text) : len(text) + data.draw(st.integers(0, 4))]
        helpful = DraftTree.chain(correct, TokenSource.DRAFT_MODEL)
        tree = helpful if data.draw(st.booleans()) else data.draw(trees())
        verdict = table.verify(sampler, text, tree, list(stop))
        sampler.observe_output(verdict.emitted_token_ids)
        text += verdict.emitted_token_ids
        stopped = verdict.stopped
        assert not stop.intersection(text[len(prompt) : -1])
    assert text[:length] == plain[:length]


@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(temperature=1.0),
        SamplingParameters(temperature=0.5, top_p=0.9),
        SamplingParameters(temperature=1.7, top_k=3, presence_penalty=0.8),
    ],
)
def test_tokens_of_one_round_follow_the_targets_joint_distribution(
    parameters: SamplingParameters,
) -> None:
    """L0 (b): chi-square test over seeds, for pairs of tokens from speculative rounds."""
    table, prompt, size, seeds = TableModel(seed=5), [2], 4, 2000
    tree = DraftTree(
        token_ids=(0, 1, 2, 1),
        parents=(ROOT, ROOT, 0, 0),
        estimates=(0.5,) * 4,
        sources=(TokenSource.DRAFT_MODEL,) * 4,
    )
    exact = torch.zeros(size, size, dtype=torch.float64)
    shaper = new_sampler(parameters, prompt)
    first = shaper.shape(table.logits(prompt)[None], [[]])[0].double().softmax(-1)
    for token in range(size):
        row = shaper.shape(table.logits([*prompt, token])[None], [[token]])[0]
        exact[token] = first[token] * row.double().softmax(-1)

    counts = torch.zeros(size, size, dtype=torch.float64)
    for seed in range(seeds):
        sampling = SamplingParameters(
            temperature=parameters.temperature,
            top_k=parameters.top_k,
            top_p=parameters.top_p,
            presence_penalty=parameters.presence_penalty,
            seed=seed,
        )
        sampler = new_sampler(sampling, prompt)
        text = list(prompt)
        while len(text) < 3:
            verdict = table.verify(sampler, text, tree if len(text) == 1 else DraftTree())
            sampler.observe_output(verdict.emitted_token_ids)
            text += verdict.emitted_token_ids
        counts[text[1], text[2]] += 1
    possible = exact > 0
    assert counts[~possible].sum() == 0
    expected = exact[possible] * seeds
    assert stats.chisquare(counts[possible].numpy(), expected.numpy()).pvalue > 1e-3
