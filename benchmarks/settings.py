"""Command line of `benchmarks.run`, and readers of options for all benchmarks."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.machine import available_cores
from benchmarks.prompts import MAIN_WORKLOADS, WORKLOADS
from benchmarks.systems import (
    ABLATIONS,
    COMPARED,
    MAIN,
    MAIN_PROFILES,
    METHODS,
    PLAIN,
    PROFILES,
    by_part,
)
from draftloop.config import REPOSITORY, Quantization

RESULTS = REPOSITORY / "benchmarks" / "results"
MAX_TEMPERATURE = 100  # highest temperature of a request
MIN_TOKENS = 2  # of an answer; its first token does not count for the speed
# Defaults of the command line. The short run takes at most five minutes, including startup.
SHORT: dict[str, Any] = {
    "minutes": 4.0,
    "prompts": 3,
    "tokens": 48,
    "temperature": [0.8],
    "profiles": ["bundled", "300M"],
    "workloads": ["completion", "editing"],
    "strategies": MAIN,
    "out": "bench",
}
FULL: dict[str, Any] = {
    "minutes": 240.0,
    "prompts": 8,
    "tokens": 64,
    "temperature": [0.8, 0.0],
    "profiles": list(MAIN_PROFILES),
    "workloads": list(MAIN_WORKLOADS),
    "strategies": COMPARED,
    "out": "full",
}


def read_settings(arguments: Sequence[str] | None, description: str = "") -> argparse.Namespace:
    """Reads the command line; its defaults depend on `--full`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--full", action="store_true",
                        help="the whole matrix, for the record; else a short run")  # fmt: skip
    parser.add_argument("--minutes", type=float,
                        help="time for everything (default: 4, full 240)")  # fmt: skip
    parser.add_argument("--resume", action="store_true",
                        help="go on where a run with these settings was interrupted")  # fmt: skip
    parser.add_argument("--prompts", type=at_least(1),
                        help="prompts per workload (default: 3, full 8)")  # fmt: skip
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS),
                        help="tokens per continuation (default: 48, full 64)")  # fmt: skip
    parser.add_argument("--temperature", type=read_temperature, action="append",
                        help="repeatable; the first has most runs (0.8, full 0.8, 0)")  # fmt: skip
    parser.add_argument("--profiles", type=names(PROFILES), help=f"of: {', '.join(PROFILES)}")
    parser.add_argument("--workloads", type=names(WORKLOADS), help=f"of: {', '.join(WORKLOADS)}")
    parser.add_argument("--strategies", type=names(METHODS), help=f"of: {', '.join(METHODS)}")
    parser.add_argument("--ablation", choices=list(ABLATIONS),
                        help="a strategy part by part, and nothing else")  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    add_quantization(parser)
    parser.add_argument("--device", type=read_device, default="cpu",
                        help="of both models: cpu, cuda or cuda:N")  # fmt: skip
    parser.add_argument("--draft-device", type=read_device,
                        help="of our draft model, where it is another one")  # fmt: skip
    parser.add_argument("--threads", type=at_least(1), default=available_cores(),
                        help="CPU threads of the target model, in both systems")  # fmt: skip
    parser.add_argument("--out", help="path of the results without suffix")
    settings = parser.parse_args(arguments)
    return _with_defaults(settings)


def default_output(name: str) -> Path:
    """Default path of a benchmark's results: beside the records, under a name that git ignores."""
    return RESULTS / f"bench-{name}"


def add_quantization(parser: argparse.ArgumentParser) -> None:
    """Adds the option of benchmarks whose target model may be quantized."""
    parser.add_argument("--quantization", default="none", choices=get_args(Quantization),
                        help="weights of our target model, not of transformers'")  # fmt: skip


def _with_defaults(settings: argparse.Namespace) -> argparse.Namespace:
    preset = dict(FULL if settings.full else SHORT)
    if settings.ablation:
        preset["strategies"] = by_part(settings.ablation)
        preset["out"] += f"-ablation-{settings.ablation}"
    preset["out"] = str((RESULTS / preset["out"]).relative_to(REPOSITORY))
    for name, value in preset.items():
        if getattr(settings, name) is None:
            setattr(settings, name, value)
    settings.strategies = [name for name in METHODS if name in {*settings.strategies, PLAIN}]
    return settings


def recorded_settings(settings: argparse.Namespace) -> dict[str, Any]:
    """The settings that are stored in the results."""
    return {key: value for key, value in vars(settings).items() if key not in ("out", "resume")}


def at_least(least: int) -> Callable[[str], int]:
    """For argparse: reads a whole number of at least `least`."""

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"\d+", text, re.ASCII) else least - 1
        if number < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}; got {text!r}"
            )
        return number

    return read


def from_zero_to(most: float) -> Callable[[str], float]:
    """For argparse: reads a number from 0 to `most`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= most:
            raise argparse.ArgumentTypeError(f"must be a number from 0 to {most}; got {text!r}")
        return number

    return read


# For argparse: reads a temperature in the range that requests allow.
read_temperature = from_zero_to(MAX_TEMPERATURE)


def read_device(text: str) -> str:
    """For argparse: reads a device in the services' notation."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:N; got {text!r}")
    return text


def names(known: Iterable[str]) -> Any:
    """For argparse: reads some of the known names, separated by commas."""
    allowed = list(known)

    def split(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        unknown = [name for name in chosen if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"must be of {', '.join(allowed)}, separated by commas; got {', '.join(unknown)}"
            )
        return chosen

    return split
