"""`make test-bench`: every benchmark that a page names, on as little as it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.opt_in import only_on_request

WANTED = "TEST_BENCH"
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measuring takes minutes, and says nothing beside other tests."""
    chosen = [item for item in items if Path(__file__).parent in item.path.parents]
    only_on_request(
        chosen,
        variable=WANTED,
        timeout_s=TIMEOUT_S,
        reason="takes minutes: run `make test-bench`",
    )
