"""The compiled choice of tokens against torch's operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from draftloop.request import SamplingParameters
from draftloop.runtime import cpu_choice
from draftloop.runtime.choices import EXCLUDED, Choices
from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.sampling import Sampler, likeliest

pytestmark = pytest.mark.skipif(UNIT is None, reason="no kernel for this CPU")

SIZES = (1, 3, 7, 8, 17, 129, 4096, 32003)


def random_rows(rows: int, vocabulary: int, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(rows, vocabulary, generator=generator)
    noise = -torch.log(-torch.log(torch.rand(rows, vocabulary, generator=generator)))
    return logits, list(noise)


def torch_choices(logits: Tensor, noise: list[Tensor], temperature: float, count: int) -> Choices:
    scores = logits
    if temperature != 1:
        scores = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    return Choices.from_scores(scores + torch.stack(noise), count)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("vocabulary", SIZES)
def test_scores_match_torch_bit_for_bit(vocabulary: int, temperature: float) -> None:
    """The tokens of a text then do not depend on whether the kernel fits."""
    logits, noise = random_rows(5, vocabulary)
    count = min(6, vocabulary)
    chosen = cpu_choice.choose(logits, noise, temperature, count)
    expected = torch_choices(logits, noise, temperature, count)
    assert torch.equal(chosen.scores, expected.scores)
    assert chosen.token_ids == expected.token_ids
    assert chosen.bests == expected.bests
    np.testing.assert_allclose(chosen.masses, expected.masses, rtol=1e-5)
    np.testing.assert_allclose(chosen.shares(), expected.shares(), rtol=2e-5, atol=1e-9)
    rows, tokens = [4, 0, 4], [0, vocabulary - 1, vocabulary // 2]
    expected_shares = expected.shares_of(rows, tokens)
    assert chosen.shares_of(rows, tokens) == pytest.approx(expected_shares, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("vocabulary", SIZES)
def test_rows_ending_inside_a_vector_are_ranked(vocabulary: int) -> None:
    """Rows that end inside a vector do not read what lies after them."""
    padded, _ = random_rows(4, vocabulary + 5)
    padded[:, vocabulary:] = 100.0
    count = min(4, vocabulary)
    rows = padded[:, :vocabulary]
    ranked = cpu_choice.best(rows, (), 1.0, count)
    assert ranked == rows.topk(count).indices.tolist()
    assert ranked == cpu_choice.choose(rows, (), 1.0, count).token_ids


def test_first_token_wins_ties() -> None:
    """Ties are common in bfloat16; the first token wins, as with torch's argmax."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, *[0.0] * 20, 3.0]])
    assert cpu_choice.choose(logits, (), 1.0, 1).token_ids == [[1]]
    assert cpu_choice.choose(logits, (), 1.0, 5).token_ids == [[1, 2, 4, 25, 3]]
    assert cpu_choice.best(logits, (), 1.0, 5) == [[1, 2, 4, 25, 3]]


def test_strided_rows_are_supported() -> None:
    """The logits of a batch of sessions are parts of one matrix."""
    logits, noise = random_rows(6, 40)
    strided = logits[::2, :33]
    chosen = cpu_choice.choose(strided, [row[:33] for row in noise[:3]], 0.5, 2)
    expected = torch_choices(strided.contiguous(), [row[:33] for row in noise[:3]], 0.5, 2)
    assert chosen.token_ids == expected.token_ids


def test_many_rows_are_divided_among_threads() -> None:
    """Many long rows are worth several threads."""
    logits, noise = random_rows(24, 32003)
    chosen = cpu_choice.choose(logits, noise, 0.8, 3)
    assert chosen.token_ids == torch_choices(logits, noise, 0.8, 3).token_ids


def test_excluded_tokens_have_no_probability() -> None:
    """If everything is excluded, nothing has a share."""
    logits = torch.full((2, 19), EXCLUDED)
    logits[0, 7] = 2.0
    chosen = cpu_choice.choose(logits, (), 1.0, 3)
    assert chosen.token_ids[0][0] == 7
    assert chosen.shares() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_successors_are_the_largest_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Best first, and no more than there are."""
    logits, _ = random_rows(3, 50)
    from_kernel = likeliest(logits, 8), likeliest(logits[:, :5], 8)
    monkeypatch.setattr(cpu_choice, "fits", lambda _: False)
    assert from_kernel == (likeliest(logits, 8), likeliest(logits[:, :5], 8))


@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(temperature=0.0),
        SamplingParameters(temperature=0.7, seed=5),
        SamplingParameters(temperature=1.0, seed=5, top_k=20, top_p=0.9, min_p=0.01),
        SamplingParameters(temperature=0.9, seed=5, repetition_penalty=1.3, logit_bias=((3, 4.0),)),
    ],
    ids=["greedy", "warm", "filtered", "penalised"],
)
def test_sampler_choices_match_with_and_without_the_kernel(
    parameters: SamplingParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same choices with the compiled kernel and with torch, for every kind of parameter."""
    sampler = Sampler(parameters, 97, torch.device("cpu"))
    sampler.observe_prompt([3, 4, 5])
    logits, _ = random_rows(4, 97, seed=1)
    arguments = (logits, [9, 10, 11, 10], [[], [1], [1, 2], [7]])
    chosen, best = sampler.choose(*arguments), sampler.best(*arguments, count=4)
    monkeypatch.setattr(cpu_choice, "fits", lambda _: False)
    assert chosen == sampler.choose(*arguments) == best.firsts
    expected = sampler.best(*arguments, count=4)
    np.testing.assert_allclose(best.shares(), expected.shares(), rtol=2e-5, atol=1e-9)
    # It does not matter which tokens take the places of excluded ones.
    mask = np.array(best.shares()) > 0
    assert np.array_equal(np.array(best.token_ids)[mask], np.array(expected.token_ids)[mask])
