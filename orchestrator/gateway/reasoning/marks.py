"""The marks that models write around their reasoning, by family, as chat templates show them."""

from __future__ import annotations

from typing import Literal, NamedTuple

MarksName = Literal["think", "mistral", "seed"]


class Marks(NamedTuple):
    """`begin` comes before the reasoning, at the start of the answer, and `end` after it."""

    name: MarksName
    begin: str
    end: str


THINK = Marks("think", "<think>", "</think>")  # of DeepSeek R1, Qwen 3, GLM 4.5 and most others
MISTRAL = Marks("mistral", "[THINK]", "[/THINK]")  # of Magistral
SEED = Marks("seed", "<seed:think>", "</seed:think>")  # of Seed-OSS
MARKS = {one.name: one for one in (THINK, MISTRAL, SEED)}


def detect_marks(template: str) -> Marks | None:
    """The marks that a chat template shows; None if it shows none that are known."""
    shown = (one for one in MARKS.values() if one.begin in template or one.end in template)
    return next(shown, None)
