"""What holds for every test: a known environment, and no GPU test without a GPU."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

from draftloop.environment import ENVIRONMENT_PREFIX, prefix_of
from draftloop.openmp import prefer_passive_waiting
from tests.support.device import is_there

prefer_passive_waiting()  # before any test imports torch; processes that tests start inherit it

for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
    del os.environ[name]  # the settings of whoever runs the tests are not theirs
# An example may take as long as a busy machine makes it.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")
# Orchestrators that tests start take a free port for HTTP where a test says nothing about it.
os.environ[f"{prefix_of('orchestrator')}HTTP_LISTEN"] = "127.0.0.1:0"


def pytest_collection_finish() -> None:
    """Spares the collector what all tests brought along, as a role does with what it starts with.

    Its looks at millions of objects, half a second and more each, came in the midst of some test.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is marked `gpu` where there is none, unless TEST_DEVICE names the CPU."""
    if item.get_closest_marker("gpu") and not is_there():
        pytest.skip("needs a CUDA device")
