"""OpenTelemetry traces, exported to a collector over OTLP gRPC. Needs the extra `tracing`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from draftloop import __version__, tracing
from draftloop.tracing import Headers, Span, Value

# Per attempt; an unreachable collector must not delay the end of a role.
EXPORT_TIMEOUT_S = 3.0
PROPAGATOR = TraceContextTextMapPropagator()
FIELDS = frozenset(PROPAGATOR.fields)
# The client went away or cancelled, which is not an error.
CANCELLED = (asyncio.CancelledError, GeneratorExit)


class OtlpSpan:
    """A span backed by OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    def child(self, name: str, **attributes: Value) -> Span:
        context = trace.set_span_in_context(self._span, Context())
        return OtlpSpan(self._tracer, _start_span(self._tracer, name, context, attributes))

    def set_attributes(self, **attributes: Value) -> None:
        self._span.set_attributes(_with_prefix(attributes))

    def headers(self) -> tuple[tuple[str, str], ...]:
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return tuple(carrier.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._span.set_attribute("error.type", kind.__name__)
            if not issubclass(kind, CANCELLED):
                self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class OtlpTracer:
    """Starts spans that continue the W3C trace context of their headers."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def span(self, name: str, headers: Headers, **attributes: Value) -> Span:
        carrier = {
            key.lower(): value.decode("latin-1") if isinstance(value, bytes) else value
            for key, value in headers
            if key.lower() in FIELDS
        }
        context = PROPAGATOR.extract(carrier, Context())
        return OtlpSpan(self._tracer, _start_span(self._tracer, name, context, attributes))


def _start_span(
    tracer: trace.Tracer, name: str, context: Context, attributes: dict[str, Value]
) -> trace.Span:
    return tracer.start_span(name, context, trace.SpanKind.INTERNAL, _with_prefix(attributes))


def _with_prefix(attributes: dict[str, Value]) -> dict[str, Value]:
    return {f"draftloop.{name}": value for name, value in attributes.items()}


@contextlib.contextmanager
def exporting(role: str, endpoint: str, ratio: float) -> Iterator[None]:
    """Within the context, spans are exported to the collector at `endpoint` on their own thread.

    `ratio` is the share of traces kept if the caller has not decided. Spans that are still pending
    at the end are exported then.
    """
    resource = Resource.create(
        {"service.name": f"draftloop-{role}", "service.version": __version__}
    )
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource, shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        with tracing.installed(OtlpTracer(provider.get_tracer("draftloop", __version__))):
            yield
    finally:
        provider.shutdown()
