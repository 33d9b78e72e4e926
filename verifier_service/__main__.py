"""`python -m verifier_service`: serves the target model until SIGTERM."""

from __future__ import annotations

from draftloop.interruption import exit_on_interrupt

with exit_on_interrupt("verifier"):  # these imports take half a second
    import sys

    from draftloop.model_info import require_model_folder
    from draftloop.rpc.role import run_role
    from draftloop.turns import importing, turn
    from verifier_service.config import VerifierSettings


async def serve(settings: VerifierSettings) -> None:
    """Listens at once, is ready when the model is warm, drains on SIGTERM."""
    # Importing torch takes seconds, so wrong settings are refused and --help is answered first.
    require_model_folder(settings.model)
    with importing(settings.start_lock):
        from draftloop.rpc.server import RoleServer
        from draftloop.runtime.service import ModelHost
        from verifier_service.servicer import SERVICE_NAME, VerifierServicer, register

    server = RoleServer(SERVICE_NAME, settings)
    host = ModelHost(settings)
    register(VerifierServicer(host), server.server)

    async def start() -> None:
        async with turn(settings.start_lock):
            await host.start()

    await server.run(start, host.stop)


if __name__ == "__main__":
    sys.exit(run_role("verifier", VerifierSettings, serve))
