"""Traces: one span a request and round, through all roles. Nothing is traced until `installed`.

Nobody here knows of OpenTelemetry: `rpc/otlp.py` does, and is loaded where an endpoint is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self

Value = str | int | float | bool
Headers = Iterable[tuple[str, str | bytes]]
"""HTTP headers or gRPC metadata: W3C `traceparent` and `tracestate` are looked for, any case."""


class Span(Protocol):
    """A stretch of time in a trace, from its making to the end of its `with`.

    Attributes never hold text of prompts or outputs. Of an error that ends it only the type is
    told.
    """

    def child(self, name: str, **attributes: Value) -> Span:
        """A span within this one, beginning now."""

    def note(self, **attributes: Value) -> None:
        """Adds attributes."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What makes another role's spans children of this one."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NoSpan:
    """What every span is while nothing is traced."""

    def child(self, name: str, **attributes: Value) -> Span:
        return self

    def note(self, **attributes: Value) -> None:
        pass

    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Tracer(Protocol):
    """Begins traces."""

    def span(self, name: str, headers: Headers, **attributes: Value) -> Span:
        """A span that goes on with the trace in the headers, or begins one."""


class NoTracer:
    """Begins nothing."""

    def span(self, name: str, headers: Headers, **attributes: Value) -> Span:
        return NO_SPAN


NO_SPAN: Span = NoSpan()
_tracers: list[Tracer] = [NoTracer()]
_current: ContextVar[Span] = ContextVar("span", default=NO_SPAN)


@contextlib.contextmanager
def installed(tracer: Tracer) -> Iterator[None]:
    """While this lasts, spans go to `tracer`."""
    _tracers.append(tracer)
    try:
        yield
    finally:
        _tracers.remove(tracer)


@contextlib.contextmanager
def span(name: str, headers: Headers = (), **attributes: Value) -> Iterator[Span]:
    """A span for as long as this lasts, and the current one of this task and those it starts."""
    outer = _current.get()
    with _tracers[-1].span(name, headers, **attributes) as here:
        _current.set(here)
        try:
            yield here
        finally:
            # not by a token: a generator may be closed from another task than the one it began in
            _current.set(outer)


def current() -> Span:
    """The span that this task is in."""
    return _current.get()
