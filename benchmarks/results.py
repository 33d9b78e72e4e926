"""Samples, and the rows that summarize them."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration import Estimates
from benchmarks.drawings import ratio_within
from benchmarks.looping import is_looping
from benchmarks.outcome import Outcome, RoundSplit
from draftloop.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured continuation, compared with plain decoding of the same repetition.

    `equal` is None if equality is not expected or the reference did not run.
    """

    profile: str
    workload: str
    method: str
    temperature: float
    file: str
    seed: int
    outcome: Outcome
    ratio: float
    equal: bool | None

    def record(self) -> dict[str, Any]:
        """All fields, for JSON; `from_record` reads them back."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Sample:
        """Restores a sample from what `record` gave."""
        return cls(**{**record, "outcome": Outcome.from_record(record["outcome"])})

    def as_json(self) -> dict[str, Any]:
        """All fields except the tokens."""
        names = ("profile", "workload", "method", "temperature", "file", "seed", "equal")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "ratio": round(self.ratio, 3), **self.outcome.as_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians over the samples of one method, at one temperature, on one profile.

    `least_ratio` and `most_ratio` are extremes of single runs. `together` is the time that plain
    decoding took for all runs, divided by the time that the method took. It is more telling than
    the median when single ratios are far apart, for instance because some texts copy themselves. In
    nine of ten bootstrap samples over prompts, it lies between `least_together` and
    `most_together`. `draft_forwards` are per token, not per round. `fallback` is the share of
    rounds whose drafter did not answer. The last two are None if a system does not report them.
    """

    profile: str
    workload: str
    temperature: float
    method: str
    runs: int
    tokens_per_second: float
    ratio: float
    tokens_per_round: float
    acceptance: float | None
    looping: float
    equality: float | None
    first_token_ms: float
    round_ms: RoundSplit | None
    least_ratio: float | None = None
    most_ratio: float | None = None
    together: float | None = None
    least_together: float | None = None
    most_together: float | None = None
    draft_forwards: float | None = None
    fallback: float | None = None


def rows(samples: Iterable[Sample]) -> list[Row]:
    """One row per profile, workload, temperature and method, ordered by first sample."""
    groups: dict[tuple[str, str, float, str], list[Sample]] = {}
    for sample in samples:
        key = (sample.profile, sample.workload, sample.temperature, sample.method)
        groups.setdefault(key, []).append(sample)
    # Values are ordered by their first occurrence, which dicts preserve.
    orders = [list(dict.fromkeys(values)) for values in zip(*groups, strict=True)]
    places = [{value: place for place, value in enumerate(order)} for order in orders]
    sorted_keys = sorted(
        groups, key=lambda key: [place[part] for place, part in zip(places, key, strict=True)]
    )
    return [row(groups[key]) for key in sorted_keys]


def row(samples: Sequence[Sample]) -> Row:
    """Summarizes samples of one kind."""
    outcomes = [sample.outcome for sample in samples]
    judged = [sample.equal for sample in samples if sample.equal is not None]
    first = samples[0]
    together, least_together, most_together = _together(samples)
    return Row(
        profile=first.profile,
        workload=first.workload,
        temperature=first.temperature,
        method=first.method,
        runs=len(samples),
        tokens_per_second=statistics.median(o.tokens_per_second for o in outcomes),
        ratio=statistics.median(sample.ratio for sample in samples),
        tokens_per_round=statistics.median(o.tokens_per_round for o in outcomes),
        acceptance=_acceptance(outcomes),
        looping=statistics.fmean(is_looping(o.token_ids) for o in outcomes),
        equality=statistics.fmean(judged) if judged else None,
        first_token_ms=1e3 * statistics.median(o.first_token_s for o in outcomes),
        round_ms=_median_split([o.split for o in outcomes if o.split]),
        least_ratio=min(sample.ratio for sample in samples),
        most_ratio=max(sample.ratio for sample in samples),
        together=together,
        least_together=least_together,
        most_together=most_together,
        draft_forwards=_draft_forwards(outcomes),
        fallback=_fallback(outcomes),
    )


def _together(samples: Sequence[Sample]) -> tuple[float | None, float | None, float | None]:
    """The ratio of all times, and its middle nine tenths over bootstrap samples of the prompts."""
    taken = np.array([sample.outcome.decode_s for sample in samples])
    if not taken.any():
        return None, None, None
    ratios = np.array([sample.ratio for sample in samples])
    return ratio_within(taken * ratios, taken, [sample.file for sample in samples])


def _acceptance(outcomes: Sequence[Outcome]) -> float | None:
    drafted = sum(outcome.drafted or 0 for outcome in outcomes)
    accepted = sum(outcome.accepted or 0 for outcome in outcomes)
    return accepted / drafted if drafted else None


def _draft_forwards(outcomes: Sequence[Outcome]) -> float | None:
    counts = [outcome.draft_forwards for outcome in outcomes if outcome.draft_forwards is not None]
    tokens = sum(len(outcome.token_ids) - outcome.first_tokens for outcome in outcomes)
    return sum(counts) / tokens if counts and tokens else None


def _fallback(outcomes: Sequence[Outcome]) -> float | None:
    counts = [
        outcome.fallback_rounds for outcome in outcomes if outcome.fallback_rounds is not None
    ]
    rounds = sum(outcome.rounds for outcome in outcomes)
    return sum(counts) / rounds if counts and rounds else None


def _median_split(splits: Sequence[RoundSplit]) -> RoundSplit | None:
    if not splits:
        return None
    medians = {
        name: statistics.median(getattr(split, name) for split in splits)
        for name in RoundSplit.__slots__
    }
    return RoundSplit(**medians)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of a whole run. `settings` and `machine` say how and on what it was measured.

    `left_out` names what was requested but could not be measured, with the reasons.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    rows: list[Row]
    samples: list[dict[str, Any]]
    calibration: list[Estimates] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def as_written(self) -> Results:
        """The results rounded as in the file, so that documents made from either are equal."""
        rows = [_row_from_json(_rounded(asdict(row))) for row in self.rows]
        return dataclasses.replace(self, rows=rows)

    def write(self, file: Path) -> None:
        """Writes JSON with one sample per line."""
        head = {
            "settings": self.settings,
            "machine": self.machine,
            "profiles": self.profiles,
            "left_out": self.left_out,
            "rows": [_rounded(asdict(row)) for row in self.rows],
            "calibration": [_rounded(asdict(entry)) for entry in self.calibration],
        }
        text = json.dumps(head, indent=2, ensure_ascii=False)
        lines = ",\n".join(f"    {json.dumps(sample)}" for sample in self.samples)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{text[:-2]},\n  "samples": [\n{lines}\n  ]\n}}\n', encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Results:
        """Reads what `write` wrote.

        Raises OSError if the file cannot be read, and InvalidInput if it has another format.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            content["rows"] = [_row_from_json(entry) for entry in content["rows"]]
            content["calibration"] = [Estimates(**e) for e in content.get("calibration", [])]
            return cls(**content)
        except (ValueError, TypeError, KeyError):
            rule = "must be a file that benchmarks.run wrote"
            raise InvalidInput("results", rule, str(file)) from None


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _row_from_json(entry: dict[str, Any]) -> Row:
    split = entry["round_ms"]
    return Row(**{**entry, "round_ms": RoundSplit(**split) if split else None})
