"""`python -m orchestrator`: serves generation until SIGTERM."""

from __future__ import annotations

from draftloop.interruption import exit_on_interrupt

with exit_on_interrupt("orchestrator"):  # the imports take half a second
    import sys

    from draftloop.rpc.role import run_role
    from orchestrator.config import OrchestratorSettings


async def serve(settings: OrchestratorSettings) -> None:
    """Listens immediately, becomes ready when a verifier is, and drains on SIGTERM."""
    # Imported here because importing the phrase index takes a second: wrong flags are refused first
    from orchestrator.deployment import Deployment
    from orchestrator.doors import OrchestratorServer
    from orchestrator.front import Front
    from orchestrator.gateway.server import HttpServer
    from orchestrator.servicer import SERVICE_NAME, GenerationServicer, register

    deployment = Deployment(settings)
    front = Front(deployment)
    http = HttpServer(settings, front) if settings.http_listen else None
    server = OrchestratorServer(SERVICE_NAME, settings, http, front)
    register(GenerationServicer(front), server.server)
    await server.run(deployment.start, deployment.stop)


if __name__ == "__main__":
    sys.exit(run_role("orchestrator", OrchestratorSettings, serve))
