"""The OpenAPI document."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fastapi import FastAPI

from tests.support.gateway import gateway


async def test_requests_do_not_wait_while_the_document_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    makers: list[threading.Thread] = []
    make = FastAPI.openapi

    def recorded(app: FastAPI) -> dict[str, Any]:
        makers.append(threading.current_thread())
        return make(app)

    monkeypatch.setattr(FastAPI, "openapi", recorded)
    async with gateway() as (client, _):
        documents = [(await client.get("/openapi.json")).json() for _ in range(2)]
    assert makers and threading.current_thread() not in makers
    assert documents[0] == documents[1] and "/v1/completions" in documents[0]["paths"]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_pages_that_load_scripts_from_elsewhere_are_not_served(path: str) -> None:
    async with gateway() as (client, _):
        assert (await client.get(path)).status_code == 404
