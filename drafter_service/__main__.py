"""`python -m drafter_service`: serves the draft model until SIGTERM."""

from __future__ import annotations

import sys

from drafter_service.config import DrafterSettings
from drafter_service.servicer import SERVICE_NAME, DrafterServicer, register
from drafter_service.strategies import STRATEGIES
from draftloop.rpc.role import run_role
from draftloop.rpc.server import RoleServer
from draftloop.runtime.service import ModelHost


async def serve(settings: DrafterSettings) -> None:
    """Listens at once, is ready when the model is warm, drains on SIGTERM."""
    server = RoleServer(SERVICE_NAME, settings)
    host = ModelHost(settings, strategies=list(STRATEGIES))
    register(DrafterServicer(host), server.server)
    await server.run(host.start, host.stop)


if __name__ == "__main__":
    sys.exit(run_role("drafter", DrafterSettings, serve))
