"""The `metrics` of an answer: drafting and timings, under vLLM's names where vLLM has them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from orchestrator.figures import SpeculationFigures
from orchestrator.loop import Generation

NS_PER_MS = 1e6


def metrics(generations: Sequence[Generation], default_max_draft_tokens: int) -> dict[str, Any]:
    """The `metrics` of an answer, added up over its choices."""
    request = generations[0].request
    total = sum((generation.figures for generation in generations), SpeculationFigures())
    max_draft_tokens = request.speculation.max_draft_tokens or default_max_draft_tokens
    return {
        "speculative_decoding": {
            "strategy": request.strategy,
            "mean_acceptance_length": 1 + _ratio(total.accepted_tokens, total.rounds),
            "draft_acceptance_rate": _ratio(total.accepted_tokens, total.draft_tokens),
            "acceptance_histogram": _histogram(total, max_draft_tokens),
            "num_spec_steps": total.rounds,
            "num_accepted_draft_tokens": total.accepted_tokens,
            "num_draft_tokens": total.draft_tokens,
            "num_spec_tokens": max_draft_tokens,
            "num_accepted_tokens_per_pos": total.accepted_per_position,
            "tokens_per_round": total.tokens_per_round,
            "draft_forwards": total.draft_forwards,
            "fallback_rounds": total.fallback_rounds,
            "phrase_rounds": total.phrase_rounds,
            "reopened_sessions": total.reopened_sessions,
            "draft_ends": {end.name.lower(): total.ends[end] for end in sorted(total.ends)},
            "sources": {
                source.name.lower(): {
                    "num_proposed_tokens": proposed,
                    "num_draft_tokens": total.drafted_by_source[source],
                    "num_accepted_draft_tokens": total.accepted_by_source[source],
                    "num_expected_tokens": total.expected_by_source[source],
                }
                for source, proposed in sorted(total.proposed_by_source.items())
            },
        },
        "seed": request.sampling.seed,
        "timings": _timings(generations),
    }


def _histogram(figures: SpeculationFigures, max_accepted: int) -> list[int]:
    """Entry j: the number of rounds in which exactly j drafted tokens were accepted.

    There is an entry for each j up to `max_accepted`, as in vLLM: aiperf takes no figures from a
    shorter list.
    """
    at_least = [figures.rounds, *figures.accepted_per_position, 0]
    counts = [more - fewer for more, fewer in itertools.pairwise(at_least)]
    return counts + [0] * (max_accepted + 1 - len(counts))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _timings(generations: Sequence[Generation]) -> dict[str, float]:
    """Times in milliseconds, and tokens per second after the first token.

    Of several choices: the shortest time to the first token, the longest decoding, the sums of
    drafting and verification.
    """
    timings = [generation.timings for generation in generations]
    decode_ms = max(timing.decode_ns for timing in timings) / NS_PER_MS
    decoded_tokens = sum(max(0, generation.output_length - 1) for generation in generations)
    return {
        "time_to_first_token_ms": min(timing.time_to_first_token_ns for timing in timings)
        / NS_PER_MS,
        "decode_ms": decode_ms,
        "draft_ms": sum(timing.draft_ns for timing in timings) / NS_PER_MS,
        "verify_ms": sum(timing.verify_ns for timing in timings) / NS_PER_MS,
        "tokens_per_second": decoded_tokens / decode_ms * 1e3 if decode_ms else 0.0,
    }
