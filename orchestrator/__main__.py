"""`python -m orchestrator`: serves generation until SIGTERM."""

from __future__ import annotations

import sys

from draftloop.rpc.role import run_role
from orchestrator.config import OrchestratorSettings


async def serve(settings: OrchestratorSettings) -> None:
    """Listens at once, is ready when a verifier is, drains on SIGTERM."""
    # Importing the phrase index takes a second: a wrong flag is refused before that.
    from draftloop.rpc.server import RoleServer
    from orchestrator.deployment import Deployment
    from orchestrator.front import Front
    from orchestrator.servicer import SERVICE_NAME, GenerationServicer, register

    server = RoleServer(SERVICE_NAME, settings)
    deployment = Deployment(settings)
    register(GenerationServicer(Front(deployment)), server.server)
    await server.run(deployment.start, deployment.stop)


if __name__ == "__main__":
    sys.exit(run_role("orchestrator", OrchestratorSettings, serve))
