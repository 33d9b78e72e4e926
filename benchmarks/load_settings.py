"""Command line of `benchmarks.load`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import available_cores
from benchmarks.settings import (
    MIN_TOKENS,
    add_quantization,
    at_least,
    default_output,
    names,
    read_temperature,
)
from benchmarks.systems import METHODS, PROFILES

# Strategies that can be named. Requests leave no phrases here, so no pool is ever warm.
COLD = [name for name, one in METHODS.items() if one.system == "draftloop" and one.pool == "cold"]
# Defaults that apply only to services that are started here.
STARTED = {"profile": "300M", "quantization": "none", "threads": available_cores()}
SESSIONS = (1, 2, 4, 8, 16)


def read_settings(arguments: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Reads the command line; defaults depend on whether a running server is measured."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", help="gRPC address of a running orchestrator, host:port")
    parser.add_argument("--prompts", type=Path,
                        help="for --server: a prompt a line, or in JSON lines")  # fmt: skip
    parser.add_argument("--profile", choices=list(PROFILES), help="without --server")
    parser.add_argument("--requests", "--sessions", dest="sessions", type=read_numbers,
                        default=list(SESSIONS), help="at a time")  # fmt: skip
    parser.add_argument("--strategies", type=names(COLD), help=f"of: {', '.join(COLD)}")
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=96,
                        help="of an answer, on average")  # fmt: skip
    parser.add_argument("--prompt-tokens", type=at_least(1), default=128,
                        help="most tokens of a held-out prompt")  # fmt: skip
    parser.add_argument("--temperature", type=read_temperature, default=0.8)
    parser.add_argument("--minutes", type=float, default=6.0, help="time for all runs")
    add_quantization(parser)
    parser.set_defaults(quantization=None)
    parser.add_argument("--threads", type=at_least(1))
    parser.add_argument("--out", type=Path, help="path without suffix")
    return _with_defaults(parser, parser.parse_args(arguments))


def _with_defaults(
    parser: argparse.ArgumentParser, settings: argparse.Namespace
) -> argparse.Namespace:
    if settings.prompts and not settings.server:
        parser.error("--prompts: only with --server, whose tokenizer reads them")
    for name, default in STARTED.items():
        given = getattr(settings, name) is not None
        if given and settings.server:
            parser.error(f"--{name}: not with --server, which runs already")
        if not given and not settings.server:
            setattr(settings, name, default)
    settings.out = settings.out or (Path("load") if settings.server else default_output("load"))
    return settings


def read_numbers(text: str) -> list[int]:
    """For argparse: reads whole numbers of at least 1, separated by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers of at least 1, separated by commas; got {text!r}"
        )
    return numbers
