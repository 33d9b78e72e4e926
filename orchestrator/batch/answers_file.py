"""The answers of a batch: JSON Lines in the form of OpenAI's Batch API, as they come."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TextIO

from draftloop.errors import InvalidInput
from orchestrator.replaced_file import replacing

FIRST_FAILURE = 300  # among the statuses of HTTP: nobody here follows a redirect
BEGINNING = b'{"id": "batch_req_'
OWN = 0o600  # what was answered is nobody else's business


def is_answered(answer: dict[str, Any]) -> bool:
    """Whether the server did what a request wanted."""
    response = answer["response"]
    return response is not None and response["status_code"] < FIRST_FAILURE


class AnswersFile:
    """Keeps what an earlier run was answered, but not what failed then: that is asked again.

    Raises InvalidInput where the file is somebody else's, or another run writes to it.
    """

    def __init__(self, file: Path) -> None:
        if file.is_file():
            file = file.resolve()  # what may have to be replaced is behind a link, or /dev/stdout
        self.answered: set[str] = set()
        self._file = _opened(file)
        if not file.is_file():  # a pipe
            return
        try:
            self._tidy(file)
        except BaseException:
            self._file.close()
            raise

    def add(self, answer: dict[str, Any]) -> None:
        """There for whoever reads the file when this returns."""
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()

    def _tidy(self, file: Path) -> None:
        """Writes nothing anew where nothing failed: there may be no room for it twice."""
        whole = kept = 0
        for line, is_kept in _lines(file, self.answered):
            whole += len(line)
            kept += len(line) if is_kept else 0
        self._file.truncate(whole)
        if kept == whole:
            return
        with self._file:
            with replacing(file) as target:
                target.writelines(line.decode() for line, is_kept in _lines(file, set()) if is_kept)
            self._file = _opened(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _opened(file: Path) -> TextIO:
    """To be written to by one run at a time, where the file system can tell."""
    opened = open(  # noqa: SIM115
        file, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, OWN)
    )
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        rule = "must be written to by one run at a time, and another one does"
        raise InvalidInput("answers", rule, str(file)) from None
    except OSError:
        pass
    return opened


def _lines(file: Path, answered: set[str]) -> Iterator[tuple[bytes, bool]]:
    """Whole lines, each with whether it is kept: a request's first answer that is no failure.

    `answered` gets the `custom_id`s of these. A last line without its end was torn when a run was
    killed. Raises InvalidInput where a line is no answer: the file is somebody else's.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                if not line.endswith(b"\n"):
                    _require_ours(line)
                    return
                answer = json.loads(line)
                custom_id, succeeded = str(answer["custom_id"]), is_answered(answer)
            except (ValueError, TypeError, KeyError):
                rule = "must be an answer of a batch; name another file for the answers"
                said = line.decode(errors="replace")
                raise InvalidInput(f"{file.name}, line {number}", rule, said) from None
            is_kept = succeeded and custom_id not in answered
            if is_kept:
                answered.add(custom_id)
            yield line, is_kept


def _require_ours(torn: bytes) -> None:
    """Raises ValueError where it is not what all our lines begin with."""
    if not (torn.startswith(BEGINNING) or BEGINNING.startswith(torn)):
        raise ValueError
