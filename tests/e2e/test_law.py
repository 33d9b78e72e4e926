"""Outputs follow the target model's distribution, with filters and penalties."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import AutoModelForCausalLM

from draftloop.config import bundled_model
from tests.e2e.client import Case, Client, held_out_prompts

TOKENS, SEEDS, CONCURRENCY, DRAFT_TOKENS = 3, 400, 8, 8
LEAST = 8.0  # the lowest expected count of a bin for which the chi-square test is valid
LAWS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.2, "top_k": 30, "top_p": 0.6, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5,
     "frequency_penalty": 0.7},
)  # fmt: skip
STRATEGIES = ("fused", "opt_tree")
Path = tuple[int, ...]


def next_token_distribution(
    logits: Tensor, law: dict[str, Any], prompt: Path, output: Path
) -> dict[int, float]:
    """The next token's distribution by its definition, in float64 and by sorting."""
    logits = logits.double()
    penalized = list({*prompt, *output})
    factor = law.get("repetition_penalty", 1.0)
    scores = logits[penalized]
    logits[penalized] = torch.where(scores > 0, scores / factor, scores * factor)
    for token, count in Counter(output).items():
        logits[token] -= law.get("frequency_penalty", 0.0) * count
        logits[token] -= law.get("presence_penalty", 0.0)
    best = (logits / law["temperature"]).softmax(0).topk(law["top_k"])
    kept = best.values / best.values.sum()
    before = kept.cumsum(0) - kept
    kept = kept[(before < law.get("top_p", 1.0)) & (kept >= law.get("min_p", 0.0) * kept[0])]
    pairs = zip(best.indices.tolist(), (kept / kept.sum()).tolist(), strict=False)
    return dict(pairs)


@torch.inference_mode()
def output_probabilities(prompt: Path, law: dict[str, Any]) -> dict[Path, float]:
    """Every possible output and its probability according to transformers."""
    folder = bundled_model("verifier")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    probabilities: dict[Path, float] = {(): 1.0}
    for _ in range(TOKENS):
        rows = model(torch.tensor([[*prompt, *output] for output in probabilities])).logits[:, -1]
        probabilities = {
            (*output, token): share * part
            for (output, share), row in zip(probabilities.items(), rows, strict=True)
            for token, part in next_token_distribution(row, law, prompt, output).items()
        }
    return probabilities


@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("law", LAWS, ids=["filters", "penalties"])
def test_output_frequencies_match_the_target_distribution(
    client: Client, law: dict[str, Any], strategy: str
) -> None:
    """Chi-square test over seeds, others for each strategy; there are drafts from round 2 on."""
    prompt = held_out_prompts(4, 40)[2 + LAWS.index(law)][:12]
    expected = output_probabilities(prompt, law)
    first = SEEDS * STRATEGIES.index(strategy)
    one = Case(prompt, TOKENS)
    cases = [replace(one, sampling={**law, "seed": seed}) for seed in range(first, first + SEEDS)]
    answers = client.answers(
        cases, strategy, CONCURRENCY, max_draft_tokens=DRAFT_TOKENS, ignore_eos=True
    )
    assert sum(answer.summary.speculation.accepted_tokens for answer in answers) > 0
    counts = Counter(tuple(answer.token_ids) for answer in answers)
    assert counts.keys() <= expected.keys()
    bins = {path: share * SEEDS for path, share in expected.items() if share * SEEDS >= LEAST}
    rare = SEEDS - sum(bins.values())
    observed = [*(counts[path] for path in bins), SEEDS - sum(counts[path] for path in bins)]
    assert len(bins) > 3
    assert stats.chisquare(observed, [*bins.values(), rare]).pvalue > 1e-3
