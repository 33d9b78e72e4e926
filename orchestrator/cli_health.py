"""`draftloop health`: whether a role takes requests, for people, scripts and probes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from draftloop.config import DEFAULT_PORTS, LOOPBACK
from draftloop.rpc.health import ProbeTls
from draftloop.rpc.health import health as health_of
from orchestrator.cli_common import (
    TlsCa,
    TlsCertificate,
    TlsKey,
    TlsServerName,
    clear_errors,
    console,
    error_console,
    require_encryption,
)

EXIT_UNHEALTHY = 1


class Role(StrEnum):
    """A role that can be asked for its health, or served by itself."""

    ORCHESTRATOR = "orchestrator"
    DRAFTER = "drafter"
    VERIFIER = "verifier"


SERVICES = {
    Role.ORCHESTRATOR: "draftloop.v1.Generation",
    Role.DRAFTER: "draftloop.v1.Drafter",
    Role.VERIFIER: "draftloop.v1.Verifier",
}


def health(
    role: Annotated[Role, typer.Argument(help="Which role listens there.")] = Role.ORCHESTRATOR,
    server: Annotated[
        str | None, typer.Option(help="Its address; the role's default port on this machine.")
    ] = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Ask a role whether it takes requests; the exit status is 0 if it does, 1 if not."""
    address = server or f"{LOOPBACK}:{DEFAULT_PORTS[role]}"
    tls = None
    if tls_ca is not None:
        tls = ProbeTls(
            ca=tls_ca, certificate=tls_certificate, key=tls_key, server_name=tls_server_name
        )
    with clear_errors():
        require_encryption(tls_ca, tls_certificate, tls_key)
        report = health_of(address, SERVICES[role], tls=tls)
    console.print(f"{role} at {address}: {report.status}", markup=False, soft_wrap=True)
    if report.trouble:
        error_console.print(
            f"draftloop: {report.trouble}", style="red", markup=False, soft_wrap=True
        )
    if report.status != "SERVING":
        raise typer.Exit(EXIT_UNHEALTHY)
