"""Traces: one span a request and round, through all roles. Nothing happens until `install`.

Nobody here knows of OpenTelemetry: `rpc/otlp.py` does, and is loaded where an endpoint is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Protocol

Value = str | int | float | bool
Headers = Iterable[tuple[str, str | bytes]]
"""HTTP headers or gRPC metadata: W3C `traceparent` and `tracestate` are looked for, any case."""


class Span(Protocol):
    """A stretch of time in a trace. Attributes never hold text of prompts or outputs."""

    def child(self, name: str, **attributes: Value) -> Span:
        """A span within this one, beginning now."""

    def note(self, **attributes: Value) -> None:
        """Adds attributes."""

    def end(self, error: BaseException | None = None) -> None:
        """Ends it, once; of an error only the type is told."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What makes another role's spans children of this one."""


class NoSpan:
    """What everything is while there are no traces."""

    def child(self, name: str, **attributes: Value) -> Span:
        return self

    def note(self, **attributes: Value) -> None:
        pass

    def end(self, error: BaseException | None = None) -> None:
        pass

    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()


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
    here = _tracers[-1].span(name, headers, **attributes)
    outer = _current.get()
    _current.set(here)
    try:
        with _ending(here):
            yield here
    finally:
        # not by a token: a generator may be closed from another task than the one that began it
        _current.set(outer)


@contextlib.contextmanager
def part(name: str, of: Span | None = None, **attributes: Value) -> Iterator[Span]:
    """A span within `of`, or within the current one, for as long as this lasts."""
    with _ending((of or _current.get()).child(name, **attributes)) as span:
        yield span


def current() -> Span:
    """The span that this task is in."""
    return _current.get()


@contextlib.contextmanager
def _ending(span: Span) -> Iterator[Span]:
    try:
        yield span
    except BaseException as error:
        span.end(error)
        raise
    span.end()
