"""Cost curves as tables: rows with ratios, and when a draft pays."""

from __future__ import annotations

from dataclasses import dataclass

from draftloop.cost_line import cost_line
from draftloop.model_info import ModelInfo


@dataclass(frozen=True, slots=True)
class CostRow:
    """One forward: `batch` sessions, each with `tokens` new tokens after `context` tokens."""

    tokens: int
    context: int
    batch: int
    ms: float
    tokens_per_ms: float
    # time relative to the first row of this context and batch, which has one token
    relative: float


def cost_rows(model: ModelInfo) -> list[CostRow]:
    """The curve's points, in its order."""
    first: dict[tuple[int, int], float] = {}
    rows = []
    for point in model.cost_curve:
        ms = max(point.forward_ns, 1) / 1e6
        rows.append(
            CostRow(
                tokens=point.tokens,
                context=point.context,
                batch=point.batch,
                ms=ms,
                tokens_per_ms=point.tokens * point.batch / ms,
                relative=ms / first.setdefault((point.context, point.batch), ms),
            )
        )
    return rows


def break_even(verifier: ModelInfo, nodes: int) -> float:
    """Accepted tokens per round from which a draft of `nodes` pays for its own verification."""
    line = cost_line(verifier.cost_curve)
    return line.nanoseconds(nodes + 1) / line.nanoseconds(1) - 1
