"""Asking a service how it is, as probes do: `python -m draftloop.rpc.health HOST:PORT [SERVICE]`.

A container asks every few seconds, so this imports grpc and nothing else that takes time.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 5.0


def health(address: str, service: str = "", timeout_s: float = TIMEOUT_S) -> str:
    """Status of a service by its full name, or of the process without one.

    SERVING is well; anything else is not, among it the name of a gRPC status, such as UNAVAILABLE
    where nothing answers and NOT_FOUND where there is no such service.
    """
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = stub.Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def main(arguments: list[str]) -> int:
    """Writes the status; returns the exit status, 0 for SERVING."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m draftloop.rpc.health HOST:PORT [SERVICE]\n")
        return 2
    address, service = (*arguments, "")[:2]
    status = health(address, service)
    sys.stdout.write(f"{status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
