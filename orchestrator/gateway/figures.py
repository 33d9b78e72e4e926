"""What an answer says about its drafts and its time; names as in vLLM where it has them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from orchestrator.figures import SpeculationFigures
from orchestrator.loop import Generation

NS_PER_MS = 1e6


def metrics(generations: Sequence[Generation], most_draft_tokens: int) -> dict[str, Any]:
    """The `metrics` of an answer; those of several choices are added up."""
    request = generations[0].request
    total = sum((generation.figures for generation in generations), SpeculationFigures())
    most = request.speculation.max_draft_tokens or most_draft_tokens
    return {
        "speculative_decoding": {
            "strategy": request.strategy,
            "mean_acceptance_length": 1 + _ratio(total.accepted_tokens, total.rounds),
            "draft_acceptance_rate": _ratio(total.accepted_tokens, total.draft_tokens),
            "acceptance_histogram": _histogram(total, most),
            "num_spec_steps": total.rounds,
            "num_accepted_draft_tokens": total.accepted_tokens,
            "num_draft_tokens": total.draft_tokens,
            "num_spec_tokens": most,
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


def _histogram(figures: SpeculationFigures, most: int) -> list[int]:
    """Entry j: rounds of which exactly j drafted tokens were accepted; one for each j, as in vLLM:
    aiperf takes no figures from a shorter one.
    """
    at_least = [figures.rounds, *figures.accepted_per_position, 0]
    counts = [more - fewer for more, fewer in itertools.pairwise(at_least)]
    return counts + [0] * (most + 1 - len(counts))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _timings(generations: Sequence[Generation]) -> dict[str, float]:
    """Milliseconds; of several choices the time to the first token is the first one's."""
    timings = [generation.timings for generation in generations]
    decode_ms = max(one.decode_ns for one in timings) / NS_PER_MS
    later = sum(max(0, generation.output_length - 1) for generation in generations)
    return {
        "time_to_first_token_ms": min(one.time_to_first_token_ns for one in timings) / NS_PER_MS,
        "decode_ms": decode_ms,
        "draft_ms": sum(one.draft_ns for one in timings) / NS_PER_MS,
        "verify_ms": sum(one.verify_ns for one in timings) / NS_PER_MS,
        "tokens_per_second": later / decode_ms * 1e3 if decode_ms else 0.0,
    }
