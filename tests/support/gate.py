"""Holds an engine, so that tasks submitted meanwhile all become available together."""

from __future__ import annotations

import threading

from draftloop.runtime.engine import Engine

WAIT_S = 20.0


class Gate:
    """Blocks the engine's thread until `open`, so that tasks queue up behind it."""

    def __init__(self, engine: Engine) -> None:
        self._entered, self._open = threading.Event(), threading.Event()
        engine.call(self._hold)
        assert self._entered.wait(WAIT_S)

    def _hold(self) -> None:
        self._entered.set()
        assert self._open.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()
