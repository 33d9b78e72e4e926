"""Checks a service's health, as probes do: `python -m draftloop.rpc.health HOST:PORT [SERVICE]`.

Containers run this every few seconds, so it imports grpc and nothing else that takes time. For
services with TLS, the environment names the files (`VARIABLES`); an image's own health check reads
them from there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftloop.environment import PROBE_TLS
from draftloop.errors import StartupFailure
from draftloop.pem import require_client_files
from draftloop.rpc.direct import DIRECT
from draftloop.rpc.unconnected import is_outdated, no_connection

TIMEOUT_S = 5.0
CA, CERTIFICATE, KEY, SERVER_NAME = VARIABLES = PROBE_TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTls:
    """PEM files for a probe: the server's CA and, for servers that require one, a certificate.

    `server_name`: the name in the server's certificate, if it is not the address.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""

    def channel(self, address: str) -> grpc.Channel:
        """A channel to `address`.

        Raises StartupFailure if a file cannot be used, which in gRPC would end the process.
        """
        require_client_files("tls", ca=self.ca, certificate=self.certificate, key=self.key)
        credentials = grpc.ssl_channel_credentials(
            self.ca.read_bytes(),
            self.key.read_bytes() if self.key else None,
            self.certificate.read_bytes() if self.certificate else None,
        )
        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.secure_channel(address, credentials, options=[DIRECT, *name])


def tls_from(environment: Mapping[str, str]) -> ProbeTls | None:
    """TLS files that the environment names (`VARIABLES`); None if it names no CA."""
    files = {name: Path(environment[name]) for name in VARIABLES[:3] if environment.get(name)}
    if CA not in files:
        return None
    return ProbeTls(
        ca=files[CA],
        certificate=files.get(CERTIFICATE),
        key=files.get(KEY),
        server_name=environment.get(SERVER_NAME, ""),
    )


class Health(NamedTuple):
    """A service's health status, or the error of the call that asked for it."""

    status: str
    trouble: str = ""  # a sentence about a TLS problem between the two, if any
    outdated: bool = False  # whether it answered, with a certificate that is not valid now


def health(
    address: str, service: str = "", timeout_s: float = TIMEOUT_S, tls: ProbeTls | None = None
) -> Health:
    """Status of a service by its full name, or of the process if `service` is empty.

    SERVING is healthy. Anything else is not, including the name of a gRPC status: UNAVAILABLE if
    nothing answers, NOT_FOUND if there is no such service. Raises StartupFailure if a file of `tls`
    cannot be used.
    """
    with _channel(address, tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = stub.Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            message = error.details() or ""
            trouble = no_connection(address, message, CA)
            return Health(str(error.code().name), trouble, is_outdated(message))
    return Health(str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)))


def _channel(address: str, tls: ProbeTls | None) -> grpc.Channel:
    if tls is not None:
        return tls.channel(address)
    return grpc.insecure_channel(address, options=[DIRECT])


def main(arguments: list[str]) -> int:
    """Writes the status; returns the exit status, 0 for SERVING.

    Without a service, a process whose certificate has expired is healthy as well: being restarted
    would not renew it, and would end the sessions that continue over older connections.
    """
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m draftloop.rpc.health HOST:PORT [SERVICE]\n")
        return 2
    address, service = (*arguments, "")[:2]
    try:
        found = health(address, service, tls=tls_from(os.environ))
    except StartupFailure as error:
        sys.stderr.write(f"draftloop: a file that {', '.join(VARIABLES[:3])} name: {error}\n")
        return 2
    sys.stdout.write(f"{found.status}\n")
    if found.trouble:
        sys.stderr.write(f"draftloop: {found.trouble}\n")
    alive = found.outdated and not service
    return 0 if found.status == "SERVING" or alive else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
