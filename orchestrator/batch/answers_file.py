"""The answers of a batch: JSON Lines in the form of OpenAI's Batch API, as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from draftloop.errors import InvalidInput
from orchestrator.replaced_file import replacing

FIRST_FAILURE = 400  # among the statuses of HTTP


def is_answered(answer: dict[str, Any]) -> bool:
    """Whether the server did what a request wanted."""
    response = answer["response"]
    return response is not None and response["status_code"] < FIRST_FAILURE


class AnswersFile:
    """Keeps what an earlier run was answered, but not what failed then: that is asked again."""

    def __init__(self, file: Path) -> None:
        kept = dict(_kept(file)) if file.is_file() else {}
        self.answered = frozenset(kept)
        if file.is_file() or not file.exists():  # anything else is a pipe
            with replacing(file) as target:
                target.writelines(kept.values())
        self._file = file.open("a", encoding="utf-8")

    def add(self, answer: dict[str, Any]) -> None:
        """There for whoever reads the file when this returns."""
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _kept(file: Path) -> Iterator[tuple[str, str]]:
    """The `custom_id`s of what was answered, each with its line.

    A last line without its end was torn when a run was killed. Raises InvalidInput where a line is
    no answer: the file is somebody else's.
    """
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                answer = json.loads(line)
                custom_id, answered = str(answer["custom_id"]), is_answered(answer)
            except (ValueError, TypeError, KeyError):
                rule = "must be an answer of a batch; name another file for the answers"
                raise InvalidInput(f"{file.name}, line {number}", rule, line) from None
            if answered:
                yield custom_id, line
