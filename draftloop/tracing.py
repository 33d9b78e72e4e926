"""Traces: one span per request and per round, through all roles. Off until `installed`.

This module does not depend on OpenTelemetry; `rpc/otlp.py` does, and is loaded only if an endpoint
is set.
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
    """A period of time in a trace, from its creation to the end of its `with`.

    Attributes never contain text of prompts or outputs. Of an error that ends the span, only the
    type is recorded.
    """

    def child(self, name: str, **attributes: Value) -> Span:
        """A span within this one that begins now."""

    def set_attributes(self, **attributes: Value) -> None:
        """Adds attributes."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers that make another role's spans children of this one."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NoSpan:
    """The span that is used while nothing is traced."""

    def child(self, name: str, **attributes: Value) -> Span:
        return self

    def set_attributes(self, **attributes: Value) -> None:
        pass

    def headers(self) -> tuple[tuple[str, str], ...]:
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Tracer(Protocol):
    """Starts spans for work that arrives with headers, or begins here."""

    def span(self, name: str, headers: Headers, **attributes: Value) -> Span:
        """A span that continues the trace in the headers, or begins a new one."""


class NoTracer:
    """Traces nothing."""

    def span(self, name: str, headers: Headers, **attributes: Value) -> Span:
        return NO_SPAN


NO_SPAN: Span = NoSpan()
_tracers: list[Tracer] = [NoTracer()]
_current: ContextVar[Span] = ContextVar("span", default=NO_SPAN)


@contextlib.contextmanager
def installed(tracer: Tracer) -> Iterator[None]:
    """Within the context, spans go to `tracer`."""
    _tracers.append(tracer)
    try:
        yield
    finally:
        _tracers.remove(tracer)


@contextlib.contextmanager
def span(name: str, headers: Headers = (), **attributes: Value) -> Iterator[Span]:
    """A span for the duration of the context; the current one of this task and its children."""
    outer = _current.get()
    with _tracers[-1].span(name, headers, **attributes) as here:
        _current.set(here)
        try:
            yield here
        finally:
            # not with a token: a generator may be closed in another task than it began in
            _current.set(outer)


def current() -> Span:
    """The current span of this task."""
    return _current.get()
