"""Structured logs: JSON lines for machines, coloured lines for people."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

import structlog

# Of bytes: a pipe that polls as writable has a page that is free.
PIECE = 4096
MODEL_SERVICES = ("drafter", "verifier")


class Output(io.TextIOBase):
    """A file that takes lines as long as it can: a full disk costs its lines, never a request.

    So does a reader that stands still, at the other end of a pipe or socket. Nothing is kept for
    later, so nothing fails again at the process's end and spoils its status.
    """

    def __init__(self, number: int, told: Callable[[int], str]) -> None:
        """`told`: the line that says how many were lost."""
        self._told = told
        self._file = io.FileIO(number, "w", closefd=False)
        kind = os.fstat(number).st_mode
        self._room = _Room(number) if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else None
        self._dropped = 0  # lines
        self._cut = False  # whether the last line that was begun has no end

    def fileno(self) -> int:
        """The file's own."""
        return self._file.fileno()

    def write(self, text: str) -> int:
        """Says that all is well, whatever became of it."""
        with contextlib.suppress(OSError):
            data = text.encode(errors="backslashreplace")
            if self._room is None:
                self._file.write(data)
            elif not self._write_as_fits(data, self._room):
                self._dropped += max(1, text.count("\n"))
        return len(text)

    def _write_as_fits(self, data: bytes, room: _Room) -> bool:
        """Whether all of it could be written without waiting for the reader."""
        if self._dropped:
            # not by the logger, which holds a lock while it writes
            data = self._told(self._dropped).encode() + b"\n" + data
        if self._cut:
            data = b"\n" + data
        for start in range(0, len(data), PIECE):
            if not room:
                self._cut = start > 0 or self._cut
                return False
            self._file.write(data[start : start + PIECE])
            self._cut = False
        self._dropped = 0
        return True


class _Room:
    """True while a pipe or socket takes a piece at once, or will never take any again."""

    def __init__(self, number: int) -> None:
        self._poll = select.poll()
        self._poll.register(number, select.POLLOUT)

    def __bool__(self) -> bool:
        return bool(self._poll.poll(0))


def have_standard_error() -> None:
    """Where a process was started without one, what is said there is lost, and no more than that.

    Python leaves None in its place, on which everything fails that writes to it.
    """
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def configure(role: str, *, log_format: str, level: str) -> None:
    """Sends every log line of this process to standard error, marked with its role.

    Whoever writes to standard error from now on, libraries included, never fails.
    """
    have_standard_error()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    processors = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        renderer,
    ]

    def lost(lines: int) -> str:
        said: Any = {"module": __name__, "event": "log lines dropped", "lines": lines}
        for processor in processors:
            said = processor(None, "warning", said)
        return str(said)

    sys.stderr = output = cast(TextIO, Output(sys.stderr.fileno(), lost))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(output),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role)
    logging.basicConfig(level=logging.WARNING, handlers=[_OthersLines()])


class _OthersLines(logging.Handler):
    """What libraries say by Python's own logging, as lines like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        said = {"exc_info": record.exc_info} if record.exc_info else {}
        level = logging.getLevelName(record.levelno).lower()
        write = getattr(structlog.get_logger(), level, structlog.get_logger().warning)
        try:
            write(record.getMessage(), module=record.name, **said)
        except Exception:  # of a message that does not fit its arguments, above all
            self.handleError(record)


def role() -> str:
    """Whose log lines this task writes."""
    return str(structlog.contextvars.get_contextvars().get("role", ""))


def session_name(request_id: str, opening: int) -> str:
    """What a model service is told of a request's session: which of all openings it is, too."""
    return f"{request_id}.{opening}"


def bind_request(name: str) -> None:
    """Names the request in every further line of this task and of those that it starts.

    `name` is the request's id, or in a model service, which knows no other, that of its session:
    one search for the `request_id` finds the lines in all roles, one for the `session_id` those of
    one of its sessions. Nothing unbinds it, so that an error told by whoever called still has the
    name: use it where a task serves one request.
    """
    if role() in MODEL_SERVICES:
        request_id, _, opening = name.rpartition(".")
        of_ours = request_id and opening.isdecimal()
        structlog.contextvars.bind_contextvars(
            request_id=request_id if of_ours else name, session_id=name
        )
    else:  # whose requests may be called anything
        structlog.contextvars.bind_contextvars(request_id=name)


def bind_http_request(request_id: str) -> None:
    """Names the HTTP request, by the id that its answer bears, in every further line of this task.

    One may have several choices, each with a request's id of its own.
    """
    structlog.contextvars.bind_contextvars(http_request_id=request_id)


def get(name: str) -> Any:
    """A logger; `name` is the module's."""
    return structlog.get_logger(module=name)
