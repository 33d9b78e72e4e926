"""Ladder L3: in bfloat16 without padded steps, every token is the model's within a gap.

The output is compared with one forward pass over the whole text: each token must have the greatest
perturbed logit, or one as near to it as rounding allows. How often plain decoding differs from
itself in a larger batch is the rate to compare the other runs with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from draftloop.config import bundled_model
from draftloop.request import SamplingParameters
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.sampling import Sampler
from tests.e2e.client import Case
from tests.gpu.conftest import DRAFT_TOKENS, Serve, Served, Tell
from tests.support.device import DEVICE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
# Logits are up to 30 and have eight bits, so an eighth is one unit in the last place of the
# largest.
GAP = 0.5
AUDITED = (("speculative", 1), ("opt_tree", 8), ("fused", 8))


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    """The services without CUDA graphs: fast, and not exact bit for bit."""
    flags = ("--no-cuda-graphs",)
    with serve(dtype="bfloat16", verifier_flags=flags, drafter_flags=flags) as running:
        yield running


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    folder = bundled_model("verifier")
    return LanguageModel(ModelOptions(folder=folder, dtype="bfloat16", device=DEVICE))


def logit_gaps(model: LanguageModel, case: Case, output: Sequence[int]) -> list[float]:
    """By how much each emitted token's perturbed logit is below the greatest one."""
    sampling = SamplingParameters(**case.sampling)
    text = [*case.prompt, *output]
    slot = model.acquire()
    try:
        start = len(case.prompt) - 1
        (logits,) = model.forward([Forward(model, slot, text[:-1], logits_from=start)])
    finally:
        model.cache.release(slot)
    sampler = Sampler(sampling, model.vocabulary_size, model.device)
    scores = sampler.scores(logits, range(len(case.prompt), len(text)), [[]] * len(output))
    chosen_scores = scores[torch.arange(len(output)), torch.tensor(output, device=scores.device)]
    # From log-probabilities at this temperature back to logits, for which rounding is uniform.
    gaps = (scores.amax(dim=-1) - chosen_scores) * (sampling.temperature or 1.0)
    return [float(gap) for gap in gaps.tolist()]


def count_differing(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> str:
    """How many texts differ."""
    return f"{sum(a != b for a, b in zip(first, second, strict=True))} of {len(first)} texts differ"


def test_every_token_is_the_targets_choice_within_the_gap(
    served: Served, model: LanguageModel, cases: list[Case], tell: Tell
) -> None:
    plain = served.client.tokens(cases, "autoregressive")
    control = served.client.tokens(cases, "autoregressive", concurrency=8)
    tell(f"plain at 1 and at 8 on {DEVICE}: {count_differing(plain, control)}")
    runs = {"plain x1": plain, "plain x8": control}
    for strategy, many in AUDITED:
        outputs = served.client.tokens(cases, strategy, many, max_draft_tokens=DRAFT_TOKENS)
        runs[f"{strategy} x{many}"] = outputs
    worst = 0.0
    for name, outputs in runs.items():
        gaps = [gap for case, text in zip(cases, outputs, strict=True)
                 for gap in logit_gaps(model, case, text)]  # fmt: skip
        differing = sum(gap > 0 for gap in gaps)
        tell(f"{name}: {differing} of {len(gaps)} tokens are no arg max, {max(gaps):.3f} at most; "
             f"{count_differing(plain, outputs)}")  # fmt: skip
        worst = max(worst, *gaps)
    assert worst <= GAP
    assert max(logit_gaps(model, cases[0], [*plain[0][:-1], plain[0][-1] ^ 1])) > GAP, "it tells"
