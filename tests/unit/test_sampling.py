"""Choosing tokens: every step against its definition, and the resulting distribution."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from draftloop.request import SamplingParameters
from draftloop.runtime.sampling import Sampler
from draftloop.runtime.sessions import Opening

CPU = torch.device("cpu")
LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, -3.0]])
SAMPLED = SamplingParameters(temperature=1.0)


def shaped_logits(parameters: SamplingParameters, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    return Sampler(parameters, logits.shape[-1], CPU).shape(logits, [[]])[0]


def kept_tokens(parameters: SamplingParameters) -> list[int]:
    return shaped_logits(parameters).isfinite().nonzero().flatten().tolist()


def test_greedy_takes_the_likeliest_for_any_filters_and_seed() -> None:
    for seed in range(5):
        sampler = Sampler(SamplingParameters(top_k=2, top_p=0.1, min_p=1.0, seed=seed), 5, CPU)
        assert sampler.choose(LOGITS, [seed], [[]]) == [0]


def test_top_k_top_p_and_min_p_keep_the_expected_tokens() -> None:
    probabilities = LOGITS[0].softmax(-1)
    assert kept_tokens(replace(SAMPLED, top_k=3)) == [0, 1, 2]
    assert kept_tokens(replace(SAMPLED, top_k=99)) == [0, 1, 2, 3, 4]
    assert kept_tokens(replace(SAMPLED, top_p=1e-6)) == [0]
    assert kept_tokens(replace(SAMPLED, top_p=float(probabilities[0]) + 1e-3)) == [0, 1]
    assert kept_tokens(replace(SAMPLED, min_p=1.0)) == [0]
    assert kept_tokens(
        replace(SAMPLED, min_p=float(probabilities[2] / probabilities[0]) * 0.99)
    ) == [
        0,
        1,
        2,
    ]


def test_filters_apply_after_the_temperature() -> None:
    assert kept_tokens(replace(SAMPLED, temperature=10.0, min_p=0.5)) == [0, 1, 2, 3, 4]
    assert kept_tokens(replace(SAMPLED, temperature=0.1, min_p=0.5)) == [0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-42, 1e-5])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    parameters = SamplingParameters(temperature=temperature, top_p=0.9)
    assert parameters.greedy and not parameters.filtered
    sampler = Sampler(parameters, 5, CPU)
    sampler.scale_temperature(0.8)
    assert sampler.choose(LOGITS.roll(2, dims=1) * 1e4, [1], [[]]) == [2]
    scores = sampler.scores(LOGITS.flip(1) * 1e4, [1], [[]])  # as other devices choose
    assert int(scores.argmax()) == 4 and scores.max() < math.inf


def test_smallest_sampling_temperature_does_not_overflow() -> None:
    # The lowest temperature that still counts as sampling does not overflow.
    sampler = Sampler(SamplingParameters(temperature=2e-5, top_p=0.9), 5, CPU)
    assert sampler.choose(LOGITS.roll(2, dims=1) * 1e4, [1], [[]]) == [2]
    scores = sampler.scores(LOGITS.flip(1) * 1e4, [1], [[]])
    assert int(scores.argmax()) == 4 and scores.max() < math.inf


def test_penalties_follow_the_usual_convention() -> None:
    """Repetition counts prompt and output; presence and frequency only the output."""
    parameters = SamplingParameters(
        repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5
    )
    sampler = Sampler(parameters, 5, CPU)
    sampler.observe_prompt([0, 3])
    sampler.observe_output([1])
    shaped = sampler.shape(LOGITS.repeat(2, 1), [[], [1, 2]])
    assert shaped[0].tolist() == [1.0, 0.5 - 0.75, 0.5, -2.0, -3.0]
    assert shaped[1].tolist() == [1.0, 0.5 - 1.25, 0.25 - 0.75, -2.0, -3.0]


def test_reopened_session_counts_its_output_as_output() -> None:
    """Penalties treat prompt and output differently, and a reopened session has both."""
    parameters = SamplingParameters(
        temperature=0.0, repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5
    )
    opening = Opening(
        session_id="", token_ids=(0, 3, 1, 1, 2), prompt_length=2, sampling=parameters
    )
    reopened = opening.sampler(SimpleNamespace(vocabulary_size=5, device=CPU))  # type: ignore[arg-type]
    running = Sampler(parameters, 5, CPU)
    running.observe_prompt([0, 3])
    for token in (1, 1, 2):
        running.observe_output([token])
    assert torch.equal(reopened.shape(LOGITS, [[]]), running.shape(LOGITS, [[]]))


def test_bias_is_applied_before_penalties() -> None:
    sampler = Sampler(SamplingParameters(logit_bias=((4, 7.0),), repetition_penalty=2.0), 5, CPU)
    sampler.observe_prompt([4])
    assert sampler.shape(LOGITS, [[]])[0, 4] == 2.0
    assert sampler.choose(LOGITS, [0], [[]]) == [0]


def test_distribution_over_positions_is_the_shaped_softmax() -> None:
    # Over many positions, chosen tokens are distributed as the softmax of the shaped logits.
    parameters = SamplingParameters(temperature=0.8, top_k=4, seed=2**64 - 1)
    sampler = Sampler(parameters, 5, CPU)
    count = 4000
    chosen = sampler.choose(LOGITS.repeat(count, 1), range(count), [[]] * count)
    exact = shaped_logits(parameters).double().softmax(-1)
    counts = torch.tensor(chosen).bincount(minlength=5)
    assert counts[4] == 0
    assert stats.chisquare(counts[:4].numpy(), (exact[:4] * count).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_batch_choices_match_single_rows(temperature: float) -> None:
    parameters = SamplingParameters(
        temperature=temperature, top_p=0.9, frequency_penalty=0.3, seed=9
    )
    sampler = Sampler(parameters, 7, CPU)
    logits = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    positions, paths = [4, 5, 5, 6, 6, 7], [[], [1], [2], [1, 1], [2, 3], [2, 3, 3]]
    alone = [
        sampler.choose(row[None], [position], [path])[0]
        for row, position, path in zip(logits, positions, paths, strict=True)
    ]
    assert sampler.choose(logits, positions, paths) == alone


def test_global_random_states_are_not_changed() -> None:
    """The reference code of Ouroboros sets the seed of the whole process in every round."""

    def states() -> tuple[object, ...]:
        of_numpy = np.random.get_state(legacy=False)
        return random.getstate(), str(of_numpy), torch.random.get_rng_state().tolist()

    before = states()
    sampler = Sampler(replace(SAMPLED, top_p=0.9, seed=4), 5, CPU)
    sampler.choose(LOGITS.repeat(20, 1), range(20), [[]] * 20)
    sampler.best(LOGITS, [20], [[]], 3)
    assert states() == before


def test_log_probabilities_are_exact() -> None:
    assert math.isclose(
        float(shaped_logits(SAMPLED).softmax(-1)[0]), float(LOGITS[0].softmax(-1)[0])
    )


def test_cooled_sampler_filters_at_the_requests_temperature() -> None:
    # Top-p is computed at the request's temperature, also where a draft model is sampled colder.
    sampler = Sampler(replace(SAMPLED, top_p=0.85), 5, CPU)
    cold = Sampler(replace(SAMPLED, top_p=0.85), 5, CPU)
    cold.scale_temperature(0.5)
    noise = sampler.scores(LOGITS, [3], [[]]) - sampler.shape(LOGITS, [[]])
    best = cold.best(LOGITS, [3], [[]], 3)
    expected = (LOGITS / 0.5 + noise)[0, :3]  # top-p keeps three of five, by temperature 1
    assert best.token_ids[0] == expected.sort(descending=True).indices.tolist()
    assert best.shares()[0] == pytest.approx(
        expected.softmax(-1).sort(descending=True).values.tolist(), rel=1e-5
    )
    colder = Sampler(replace(SAMPLED, temperature=0.5, top_p=0.85), 5, CPU)
    assert [share > 0 for share in colder.best(LOGITS, [3], [[]], 3).shares()[0]] == [
        True, True, False,
    ]  # fmt: skip
