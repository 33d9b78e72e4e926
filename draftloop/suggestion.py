"""The known name that a misspelt one probably means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ALIKE = 0.6  # difflib's own measure and limit: below it a suggestion is a riddle


def nearest(name: str, known: Iterable[str]) -> str:
    """Of the known ones; empty where none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=ALIKE)), "")


def unknown(name: str, what: str, meant: str) -> str:
    """What to say of it: `what` it would be, and which one was probably `meant`, if any."""
    hint = f"; the nearest that is known is {meant}" if meant else ""
    return f"{name}: unknown {what}{hint}"


def unknown_flag(word: str, settings: Iterable[str]) -> str:
    """The same of a flag, perhaps with its value, where every setting has one of its name."""
    flag = word.partition("=")[0]
    return unknown(flag, "flag", nearest(flag, map(flag_of, settings)))


def flag_of(setting: str) -> str:
    """The flag of a setting."""
    return f"--{setting.replace('_', '-')}"
