"""Counts calls to a role's gRPC services by their status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from prometheus_client import Counter

from draftloop.deadline import Deadline
from draftloop.metrics import REGISTRY

# The name that common gRPC middlewares use.
HANDLED = Counter(
    "draftloop_grpc_server_handled_total",
    "Calls that have ended, by method and status code; a stream is one call.",
    ["grpc_method", "grpc_code"],
    registry=REGISTRY,
)


@contextlib.contextmanager
def handled(method: str, context: Any) -> Iterator[None]:
    """Counts a call to one of our own methods when it ends, whatever its outcome."""
    code, deadline = grpc.StatusCode.OK, Deadline.after(context.time_remaining())
    try:
        yield
    except grpc.aio.AbortError:
        code = context.code()
        raise
    except (asyncio.CancelledError, GeneratorExit):
        # gRPC cancels a call at its deadline, and also when the client cancels it
        late = deadline.reached
        code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
        raise
    finally:
        HANDLED.labels(method.rpartition("/")[2], code.name).inc()
