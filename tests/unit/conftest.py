"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftloop.runtime.engine import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A running engine."""
    running = Engine()
    yield running
    running.stop()
