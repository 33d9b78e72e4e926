"""Details in the status of a failed call."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc.status_pb2 import Status


def detail(error: grpc.RpcError, kind: type[Any]) -> Any:
    """The rich error detail of that kind; fails the test if there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for packed in Status.FromString(value).details:
                message = kind()
                if packed.Unpack(message):
                    return message
    raise AssertionError(f"no {kind.__name__} came with {error.code()}: {error.details()}")
