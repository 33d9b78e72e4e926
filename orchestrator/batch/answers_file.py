"""The answers of a batch: JSON Lines in the format of OpenAI's Batch API, written as they come."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TextIO

from draftloop.errors import InvalidInput
from orchestrator.replaced_file import replacing

FIRST_FAILURE_STATUS = 300  # the lowest HTTP status of a failure: redirects are not followed
LINE_PREFIX = b'{"id": "batch_req_'
OWNER_ONLY = 0o600  # answers are private to the user


def is_answered(answer: dict[str, Any]) -> bool:
    """Whether the request succeeded."""
    response = answer["response"]
    return response is not None and response["status_code"] < FIRST_FAILURE_STATUS


class AnswersFile:
    """The file of answers, to which a run adds.

    Keeps an earlier run's successful answers and drops its failures, which are asked again. Raises
    InvalidInput if the file holds anything else, or if another run writes to it.
    """

    def __init__(self, file: Path) -> None:
        if file.is_file():
            file = file.resolve()  # replace the file itself, not a link to it such as /dev/stdout
        self.answered: set[str] = set()
        self._file = _open_locked(file)
        if not file.is_file():  # a pipe
            return
        try:
            self._drop_unkept_lines(file)
        except BaseException:
            self._file.close()
            raise

    def add(self, answer: dict[str, Any]) -> None:
        """Writes an answer. Readers of the file see it when this returns."""
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()

    def _drop_unkept_lines(self, file: Path) -> None:
        """Drops a torn last line, and answers that are not kept.

        Rewrites the file only if there are such answers: the disk may not have room for it twice.
        """
        total_bytes = kept_bytes = 0
        for line, is_kept in _read_lines(file, self.answered):
            total_bytes += len(line)
            kept_bytes += len(line) if is_kept else 0
        self._file.truncate(total_bytes)
        if kept_bytes == total_bytes:
            return
        with self._file:
            with replacing(file) as target:
                target.writelines(
                    line.decode() for line, is_kept in _read_lines(file, set()) if is_kept
                )
            self._file = _open_locked(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _open_locked(file: Path) -> TextIO:
    """Opens the file to append, locked if the file system has locks.

    Raises InvalidInput if another run has the lock.
    """
    opened = open(  # noqa: SIM115
        file, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY)
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


def _read_lines(file: Path, answered: set[str]) -> Iterator[tuple[bytes, bool]]:
    """Yields whole lines, each with whether it is kept: a request's first successful answer is.

    Adds the `custom_id`s of kept lines to `answered`. Stops before a last line without a line end,
    which was torn when a run was killed. Raises InvalidInput if a line is not an answer: the file
    is somebody else's.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                if not line.endswith(b"\n"):
                    _require_batch_line(line)
                    return
                answer = json.loads(line)
                custom_id, succeeded = str(answer["custom_id"]), is_answered(answer)
            except (ValueError, TypeError, KeyError):
                rule = "must be an answer of a batch; name another file for the answers"
                text = line.decode(errors="replace")
                raise InvalidInput(f"{file.name}, line {number}", rule, text) from None
            is_kept = succeeded and custom_id not in answered
            if is_kept:
                answered.add(custom_id)
            yield line, is_kept


def _require_batch_line(line: bytes) -> None:
    """Raises ValueError if the torn line does not begin like all our lines."""
    if not (line.startswith(LINE_PREFIX) or LINE_PREFIX.startswith(line)):
        raise ValueError
