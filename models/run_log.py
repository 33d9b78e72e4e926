"""The log of a run: a line of JSON for every few steps, which a kill may cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(log: Path) -> list[dict[str, Any]]:
    """What a run has told so far; half a line, of one that was killed, is none."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def add(log: Path, record: dict[str, Any]) -> None:
    """One line more."""
    with log.open("a") as stream:
        stream.write(json.dumps(record) + "\n")


def go_on(log: Path, tokens: int) -> None:
    """Drops what was told since the checkpoint after so many tokens: those steps come again."""
    told = [record for record in read(log) if record["tokens"] <= tokens]
    log.write_text("".join(json.dumps(record) + "\n" for record in told))
