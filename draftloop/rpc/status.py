"""Reading rich error details on the client's side."""

from __future__ import annotations

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from draftloop.rpc.interceptors import DETAILS_KEY


def error_info(error: grpc.aio.AioRpcError) -> ErrorInfo | None:
    """The ErrorInfo that came with a failed call, if any."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for detail in Status.FromString(value).details:
                info = ErrorInfo()
                if detail.Unpack(info):
                    return info
    return None
