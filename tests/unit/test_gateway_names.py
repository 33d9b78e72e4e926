"""The model may be served under several names, as agents also ask for a small model by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gateway import gateway

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"}, "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "a"}, "/v1/messages": CHAT,
}  # fmt: skip
NAMES = ["big", "org/small", "small:1b"]


@pytest.mark.parametrize("path", BODIES)
async def test_every_served_name_is_accepted(path: str) -> None:
    async with gateway(served_model_name=", ".join(NAMES)) as (client, _):
        for name in [*NAMES, None]:  # refused for another field, checked after the name
            body = {**BODIES[path], "model": name, "temperature": -1}
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith("temperature: ")
        answer = await client.post(path, json={**BODIES[path], "model": "small"})
    assert answer.status_code == 404
    assert "must be 'big' or 'org/small' or 'small:1b'" in answer.json()["error"]["message"]


async def test_models_are_listed_under_all_names() -> None:
    async with gateway(served_model_name=",".join(NAMES)) as (client, deployment):
        page = (await client.get("/v1/models")).json()
        assert [model["id"] for model in page["data"]] == NAMES
        assert (page["first_id"], page["last_id"]) == (NAMES[0], NAMES[-1])
        for model in page["data"]:
            assert (await client.get(f"/v1/models/{model['id']}")).json() == model
            assert model["root"] == deployment.model.model_name
        assert (await client.get("/v1/models/other")).status_code == 404


@pytest.mark.parametrize("served_name", ["", " , "])
async def test_default_name_is_the_verifiers(served_name: str) -> None:
    async with gateway(served_model_name=served_name) as (client, deployment):
        (model,) = (await client.get("/v1/models")).json()["data"]
    assert model["id"] == deployment.model.model_name
