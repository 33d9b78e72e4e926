"""An OpenTelemetry collector that keeps the spans it receives."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc


@dataclass(frozen=True)
class CollectedSpan:
    """One span and the service that sent it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    failed: bool


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Serves on a free port; use it as a context manager."""

    def __init__(self) -> None:
        self._spans: list[CollectedSpan] = []
        self._door = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        for group in request.resource_spans:
            service = _attributes(group.resource.attributes)["service.name"]
            spans = [span for scope in group.scope_spans for span in scope.spans]
            with self._door:
                self._spans += [_collected(service, span) for span in spans]
        return pb.ExportTraceServiceResponse()

    def spans(self, trace_id: str) -> list[CollectedSpan]:
        """Spans of one trace that have arrived so far."""
        with self._door:
            return [span for span in self._spans if span.trace_id == trace_id]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def _collected(service: str, span: Any) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
