"""The log of a run: one line of JSON every few steps; a kill may truncate the last one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(log: Path) -> list[dict[str, Any]]:
    """All records of a run so far; a truncated line, from a run that was killed, is ignored."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def add(log: Path, record: dict[str, Any]) -> None:
    """Appends a record as one line."""
    with log.open("a") as stream:
        stream.write(json.dumps(record) + "\n")


def truncate_after(log: Path, tokens: int) -> None:
    """Drops records after the checkpoint at `tokens` tokens: those steps are repeated."""
    kept = [record for record in read(log) if record["tokens"] <= tokens]
    log.write_text("".join(json.dumps(record) + "\n" for record in kept))
