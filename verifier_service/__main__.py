"""`python -m verifier_service`: serves the target model until SIGTERM."""

from __future__ import annotations

import sys

from draftloop.rpc.role import run_role
from verifier_service.config import VerifierSettings


async def serve(settings: VerifierSettings) -> None:
    """Listens at once, is ready when the model is warm, drains on SIGTERM."""
    # Importing torch takes seconds: a wrong flag is refused, and --help answered, before that.
    from draftloop.rpc.server import RoleServer
    from draftloop.runtime.service import ModelHost
    from verifier_service.servicer import SERVICE_NAME, VerifierServicer, register

    server = RoleServer(SERVICE_NAME, settings)
    host = ModelHost(settings)
    register(VerifierServicer(host), server.server)
    await server.run(host.start, host.stop)


if __name__ == "__main__":
    sys.exit(run_role("verifier", VerifierSettings, serve))
