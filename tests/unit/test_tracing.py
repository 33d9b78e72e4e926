"""Tracing: nothing without a tracer; with one, W3C headers in and out."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from draftloop import tracing
from draftloop.rpc import otlp
from tests.support.collector import CollectedSpan, Collector
from tests.support.waiting import until

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def spans_by_name(collector: Collector, trace_id: str, count: int) -> dict[str, CollectedSpan]:
    until(lambda: len(collector.spans(trace_id)) == count, 30)
    return {span.name: span for span in collector.spans(trace_id)}


def trace_of(span: tracing.Span) -> str:
    return dict(span.headers())["traceparent"].split("-")[1]


def test_no_spans_without_a_tracer() -> None:
    with tracing.span("request", [("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01")]) as span:
        assert span is tracing.current() is tracing.NO_SPAN
        assert span.child("round") is tracing.NO_SPAN
        assert not span.headers()


def test_trace_continues_from_headers_of_any_kind(collector: Collector) -> None:
    """HTTP headers may have any case; gRPC metadata may contain bytes and other keys."""
    traceparent = f"00-{TRACE_ID}-{PARENT_ID}-01"
    headers: list[tuple[str, str | bytes]] = [("Traceparent", traceparent), ("other-bin", b"\xff")]
    with (
        otlp.exporting("orchestrator", collector.endpoint, 0.0),
        tracing.span("request", headers, strategy="fused") as span,
        span.child("round", committed_length=7) as child,
    ):
        assert re.fullmatch(
            f"00-{TRACE_ID}-[0-9a-f]{{16}}-01", dict(child.headers())["traceparent"]
        )
        child.set_attributes(nodes=3)
    spans = spans_by_name(collector, TRACE_ID, 2)
    assert spans["request"].parent_id == PARENT_ID
    assert spans["request"].attributes == {"draftloop.strategy": "fused"}
    assert spans["round"].parent_id == spans["request"].span_id
    assert spans["round"].attributes == {"draftloop.committed_length": 7, "draftloop.nodes": 3}
    assert tracing.current() is tracing.NO_SPAN


def test_span_of_an_error_has_only_its_type(collector: Collector) -> None:
    # A span records only the type of an error, not its message; a cancelled request has not failed.
    ids = []
    with otlp.exporting("verifier", collector.endpoint, 1.0):
        for error in (KeyError("a secret"), asyncio.CancelledError()):
            with pytest.raises(type(error)), tracing.span("request") as span:
                ids.append(trace_of(span))
                raise error
    failed, cancelled = (spans_by_name(collector, trace_id, 1)["request"] for trace_id in ids)
    assert failed.failed and failed.attributes == {"error.type": "KeyError"}
    assert not cancelled.failed and cancelled.attributes == {"error.type": "CancelledError"}


def test_unsampled_spans_are_not_exported(collector: Collector) -> None:
    # An unsampled trace is passed on as unsampled, and none of its spans are exported.
    with otlp.exporting("verifier", collector.endpoint, 0.0), tracing.span("request") as span:
        trace_id = trace_of(span)
        flags = dict(span.headers())["traceparent"].rpartition("-")[2]
        assert not int(flags, 16) & 1
    assert not collector.spans(trace_id)


@pytest.mark.parametrize(
    ("setup", "status", "message"),
    [
        ("sys.modules['opentelemetry'] = None", 2, "draftloop[tracing]"),
        ("", 0, ""),
    ],
)
def test_role_reports_missing_tracing_packages(setup: str, status: int, message: str) -> None:
    """A role starts if the package is installed, whether or not a collector answers."""
    code = f"""
import sys
{setup}
from draftloop.rpc.role import run_role
from verifier_service.config import VerifierSettings
async def serve(settings): pass
sys.exit(run_role("verifier", VerifierSettings, serve, ["--trace-endpoint", "http://127.0.0.1:9"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == status, run.stderr
    assert message in run.stderr and "Traceback" not in run.stderr
