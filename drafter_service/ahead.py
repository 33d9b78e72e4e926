"""Drafting ahead: a session's strategy extends its last draft while the target verifies it."""

from __future__ import annotations

from drafter_service.strategies import Strategy
from draftloop import logs
from draftloop.runtime.awaited import Awaited
from draftloop.runtime.engine import Engine
from draftloop.tree import ServiceTimings

log = logs.get(__name__)


class Ahead:
    """Drafts ahead for one session, from each answer until its next request."""

    def __init__(self, engine: Engine, strategy: Strategy, *, enabled: bool) -> None:
        self._engine, self._strategy, self._enabled = engine, strategy, enabled
        self._ended = False
        self._timings = ServiceTimings()
        self._under_way: Awaited[None] | None = None

    def begin(self) -> None:
        """Starts without waiting; no effect if not `enabled` or already running."""
        if not self._enabled or self._under_way is not None:
            return
        self._ended, self._timings = False, ServiceTimings()
        task = self._strategy.draft_ahead(self._should_continue)
        self._under_way = self._engine.submit_awaitable(
            task, self._timings, self._strategy.session.slot, is_awaited=False
        )

    async def end(self) -> int:
        """Waits for the running forward, if any; returns how many forwards were run ahead."""
        self._ended = True
        if self._under_way is None:
            return 0
        try:
            await self._under_way
        except Exception as error:  # the next draft starts anew, as it would without this
            log.warning("drafting ahead failed", error=str(error))
        self._under_way = None
        return self._timings.forwards

    def cancel(self) -> None:
        """Stops without waiting: the session is over."""
        self._ended = True
        if self._under_way is not None:
            self._under_way.cancel()

    def _should_continue(self) -> bool:
        """Called on the engine's thread. Sessions that wait for a draft have precedence."""
        return not self._ended and self._engine.is_alone
