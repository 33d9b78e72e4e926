"""`python -m drafter_service`: serves the draft model until SIGTERM."""

from __future__ import annotations

from draftloop.interruption import exit_on_interrupt

with exit_on_interrupt("drafter"):  # these imports take half a second
    import asyncio
    import sys

    from drafter_service.config import DrafterSettings
    from draftloop.model_info import require_model_folder
    from draftloop.rpc.role import run_role
    from draftloop.turns import importing, turn


async def serve(settings: DrafterSettings) -> None:
    """Listens at once, is ready when the model is warm, drains on SIGTERM."""
    # Importing torch takes seconds, so wrong settings are refused and --help is answered first.
    require_model_folder(settings.model)
    with importing(settings.start_lock):
        from drafter_service.servicer import SERVICE_NAME, DrafterServicer, register
        from drafter_service.strategies import STRATEGIES
        from drafter_service.warm_up import warm_up
        from draftloop.rpc.server import RoleServer
        from draftloop.runtime.service import ModelHost
        from phrase_store.store import PhraseStore
        from phrase_store.store import warm_up as warm_up_phrases

    server = RoleServer(SERVICE_NAME, settings)
    host = ModelHost(
        settings, strategies=list(STRATEGIES), smaller_models=settings.smaller_model_folders
    )
    store = PhraseStore(settings)
    register(DrafterServicer(host, store, settings), server.server)

    async def start() -> None:
        async with turn(settings.start_lock):
            # Before the model's costs are measured: compiling at the same time would inflate them.
            await asyncio.to_thread(warm_up_phrases)
            await host.start(warm_up)

    async def stop() -> None:
        await host.stop()
        await asyncio.to_thread(store.close)

    await server.run(start, stop)


if __name__ == "__main__":
    sys.exit(run_role("drafter", DrafterSettings, serve))
