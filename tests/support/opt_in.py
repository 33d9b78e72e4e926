"""Tests that take minutes, or need a program that may be missing: they run only on request."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest


def only_on_request(
    items: Iterable[pytest.Item], *, variable: str, timeout_s: int, reason: str
) -> None:
    """Sets the tests' timeout, and skips them with the reason unless `variable` is set."""
    for item in items:
        item.add_marker(pytest.mark.timeout(timeout_s))
        if not os.environ.get(variable):
            item.add_marker(pytest.mark.skip(reason=reason))


def tests_below(folder: Path, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests in a folder; needed because a `conftest.py` receives those of the whole run."""
    return [item for item in items if folder in item.path.parents]
