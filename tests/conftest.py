"""For all tests: a known environment, free HTTP ports, and no GPU test without a GPU."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

from draftloop.environment import ENVIRONMENT_PREFIX, prefix_of
from draftloop.openmp import prefer_passive_waiting
from tests.support.device import is_available

prefer_passive_waiting()  # before any test imports torch; processes that tests start inherit it

for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
    del os.environ[name]  # the settings of whoever runs the tests must not affect them
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)  # nor may the size of their terminal
# No deadline for Hypothesis examples: a busy machine may make any of them slow.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")
# An orchestrator that a test starts without naming an HTTP address listens on a free port.
os.environ[f"{prefix_of('orchestrator')}HTTP_LISTEN"] = "127.0.0.1:0"


def pytest_collection_finish() -> None:
    """Excludes what test collection created from garbage collection, as roles do at start.

    A full collection visits millions of objects and takes half a second or more. It would happen in
    the middle of some test.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests marked `gpu` when there is no GPU, unless TEST_DEVICE names the CPU."""
    if item.get_closest_marker("gpu") and not is_available():
        pytest.skip("needs a CUDA device")
