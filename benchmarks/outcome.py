"""Result and cost of one continuation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftloop.completion import SourceFigures
from draftloop.tree import TokenSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSplit:
    """Average time of a round by part, in milliseconds; known only for our own services.

    `overhead` is the median over the request's rounds of the time outside of forwards.
    """

    draft_forward: float
    verify_forward: float
    wire: float
    rest: float
    overhead: float


def source_name(source: TokenSource) -> str:
    """The source's name in tables and files."""
    return source.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One continuation, with times as the caller saw them.

    `decode_s` is the time from the first tokens to the last ones. The `first_tokens` arrived
    together at the beginning, and do not count for the speed. `drafted`, `accepted`,
    `draft_forwards` and `fallback_rounds` are None if a system does not report them. `ends` counts
    rounds by what ended their draft.
    """

    token_ids: tuple[int, ...]
    first_tokens: int
    first_token_s: float
    decode_s: float
    rounds: int
    drafted: int | None = None
    accepted: int | None = None
    draft_forwards: int | None = None
    fallback_rounds: int | None = None
    split: RoundSplit | None = None
    sources: tuple[SourceFigures, ...] = ()
    ends: dict[str, int] = field(default_factory=dict)

    @property
    def decoded(self) -> int:
        """Number of tokens after the first ones."""
        return len(self.token_ids) - self.first_tokens

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first ones, per second of decoding."""
        return self.decoded / self.decode_s if self.decode_s else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens after the first ones, per forward pass of the target model."""
        return self.decoded / self.rounds if self.rounds else 0.0

    @classmethod
    def from_steps(cls, token_ids: tuple[int, ...], steps: list[tuple[float, int]]) -> Outcome:
        """Makes an outcome from one (seconds since the request, number of new tokens) per round."""
        times = [seconds for seconds, _ in steps]
        return cls(
            token_ids=token_ids,
            first_tokens=steps[0][1],
            first_token_s=times[0],
            decode_s=times[-1] - times[0],
            rounds=len(steps) - 1,
        )

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Outcome:
        """Restores what `dataclasses.asdict` gave, after a round trip through JSON."""
        split = record["split"]
        parts = [{**part, "source": TokenSource(part["source"])} for part in record["sources"]]
        taken = {
            "token_ids": tuple(record["token_ids"]),
            "split": RoundSplit(**split) if split else None,
            "sources": tuple(SourceFigures(**part) for part in parts),
        }
        return cls(**{**record, **taken})

    def as_json(self) -> dict[str, Any]:
        """All figures without the tokens."""
        split = self.split
        return {
            "tokens": len(self.token_ids),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "tokens_per_round": round(self.tokens_per_round, 3),
            "first_token_ms": round(1e3 * self.first_token_s, 3),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "draft_forwards": self.draft_forwards,
            "fallback_rounds": self.fallback_rounds,
            "sources": {
                source_name(part.source): [
                    part.proposed,
                    part.drafted,
                    part.accepted,
                    part.expected,
                ]
                for part in self.sources
            },
            "ends": self.ends,
            "round_ms": {name: round(getattr(split, name), 3) for name in RoundSplit.__slots__}
            if split
            else None,
        }
