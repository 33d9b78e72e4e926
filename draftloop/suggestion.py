"""Finds the known name that a misspelt one probably means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ALIKE = 0.6  # difflib's measure and default limit: below it, suggestions are confusing


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar of the known names; empty if none is similar enough."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=ALIKE)), "")


def unknown_name_message(name: str, kind: str, suggestion: str) -> str:
    """An error message: which kind of name is unknown, and which one was probably meant, if any."""
    hint = f"; the nearest that is known is {suggestion}" if suggestion else ""
    return f"{name}: unknown {kind}{hint}"


def unknown_flag_message(word: str, settings: Iterable[str]) -> str:
    """The message for an unknown flag, given with or without its value."""
    flag = word.partition("=")[0]
    return unknown_name_message(flag, "flag", nearest(flag, map(flag_of, settings)))


def flag_of(setting: str) -> str:
    """The command-line flag of a setting."""
    return f"--{setting.replace('_', '-')}"
