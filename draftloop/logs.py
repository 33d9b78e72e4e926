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

# In bytes: a pipe that polls as writable has at least one free page.
PIECE = 4096
MODEL_SERVICES = ("drafter", "verifier")


class Output(io.TextIOBase):
    """A stream for log lines that never blocks or fails: lines that cannot be written are dropped.

    That is the case on a full disk, or if the reader of a pipe or socket has stopped reading.
    Nothing is buffered, so no write can fail at the end of the process and change its exit status.
    """

    def __init__(self, file_descriptor: int, format_dropped: Callable[[int], str]) -> None:
        """`format_dropped` makes the line that says how many lines were dropped."""
        self._format_dropped = format_dropped
        self._file = io.FileIO(file_descriptor, "w", closefd=False)
        kind = os.fstat(file_descriptor).st_mode
        self._writable = (
            _Writable(file_descriptor) if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else None
        )
        self._dropped = 0  # lines
        self._cut = False  # whether the last line was written only in part

    def fileno(self) -> int:
        """The file descriptor."""
        return self._file.fileno()

    def write(self, text: str) -> int:
        """Writes as much as possible; reports success in any case."""
        with contextlib.suppress(OSError):
            data = text.encode(errors="backslashreplace")
            if self._writable is None:
                self._file.write(data)
            elif not self._write_available(data, self._writable):
                self._dropped += max(1, text.count("\n"))
        return len(text)

    def _write_available(self, data: bytes, writable: _Writable) -> bool:
        """Writes without waiting for the reader; returns whether all of it was written."""
        if self._dropped:
            # not through the logger, which holds a lock while it writes
            data = self._format_dropped(self._dropped).encode() + b"\n" + data
        if self._cut:
            data = b"\n" + data
        for start in range(0, len(data), PIECE):
            if not writable:
                self._cut = start > 0 or self._cut
                return False
            self._file.write(data[start : start + PIECE])
            self._cut = False
        self._dropped = 0
        return True


class _Writable:
    """True while a pipe or socket accepts a piece at once, or will never accept one again."""

    def __init__(self, file_descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(file_descriptor, select.POLLOUT)

    def __bool__(self) -> bool:
        return bool(self._poll.poll(0))


def have_standard_error() -> None:
    """Replaces a missing standard error with one that discards everything.

    If a process was started without one, Python sets `sys.stderr` to None, and every write to it
    would fail.
    """
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def configure(role: str, *, log_format: str, level: str) -> None:
    """Sends every log line of this process to standard error, marked with its role.

    From then on, writing to standard error never fails, for libraries either.
    """
    have_standard_error()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    processors = [
        structlog.contextvars.merge_contextvars,
        _marker(role),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        renderer,
    ]

    def format_dropped(lines: int) -> str:
        event: Any = {"module": __name__, "event": "log lines dropped", "lines": lines}
        for processor in processors:
            event = processor(None, "warning", event)
        return str(event)

    sys.stderr = output = cast(TextIO, Output(sys.stderr.fileno(), format_dropped))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(output),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role)
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryLogHandler()])


def _marker(role: str) -> structlog.typing.Processor:
    """Adds the role to lines of threads, which begin without context variables."""

    def mark(_logger: Any, _level: str, event: structlog.typing.EventDict) -> Any:
        event.setdefault("role", role)
        return event

    return mark


class _LibraryLogHandler(logging.Handler):
    """Renders what libraries log through Python's `logging` as lines like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        details = {"exc_info": record.exc_info} if record.exc_info else {}
        level = logging.getLevelName(record.levelno).lower()
        write = getattr(structlog.get_logger(), level, structlog.get_logger().warning)
        try:
            write(record.getMessage(), module=record.name, **details)
        except Exception:  # mostly a message whose arguments do not match its format
            self.handleError(record)


def role() -> str:
    """The role under which this task logs."""
    return str(structlog.contextvars.get_contextvars().get("role", ""))


def session_name(request_id: str, opening: int) -> str:
    """Name of a request's session in a model service: the request's id and the opening's number."""
    return f"{request_id}.{opening}"


def bind_request(name: str) -> None:
    """Adds the request's id to every further log line of this task and of tasks that it starts.

    `name` is the request's id or, in a model service, its session's name. A search for the
    `request_id` finds the lines of all roles; a search for the `session_id` finds those of one
    session. Nothing unbinds the name, so that an error logged by the caller still has it: use this
    function in tasks that serve one request.
    """
    if role() in MODEL_SERVICES:
        request_id, _, opening = name.rpartition(".")
        is_session_name = request_id and opening.isdecimal()
        structlog.contextvars.bind_contextvars(
            request_id=request_id if is_session_name else name, session_id=name
        )
    else:  # here, request ids may be any text
        structlog.contextvars.bind_contextvars(request_id=name)


def bind_http_request(request_id: str) -> None:
    """Adds the HTTP request's id, which its answer has too, to every further log line of this task.

    One HTTP request may have several choices, each with its own request id.
    """
    structlog.contextvars.bind_contextvars(http_request_id=request_id)


def get(name: str) -> Any:
    """A logger; `name` is the module's."""
    return structlog.get_logger(module=name)
