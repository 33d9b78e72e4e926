"""A server on loopback without keys refuses foreign host names that point to it.

Otherwise a web page could reach it under its own name (DNS rebinding).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.config import OrchestratorSettings
from orchestrator.key_file import KeyEntry, hash_of, new_key
from tests.support.certificates import Authority
from tests.support.gateway import gateway

PAGE = "evil.example"
PATHS = ("/health", "/metrics", "/v1/models", "/playground/", "/nowhere")


async def statuses(host: str, **settings: Any) -> set[int]:
    async with gateway(host=host, **settings) as (client, _):
        origin = {"origin": f"http://{host}"}
        return {(await client.get(path, headers=origin)).status_code for path in PATHS}


@pytest.mark.parametrize("listen", ["127.0.0.1:8000", "localhost:0", "[::1]:8000", "127.8.0.1:9"])
@pytest.mark.parametrize(
    "host", [PAGE, f"{PAGE}:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"]
)
async def test_another_name_is_refused_on_loopback(listen: str, host: str) -> None:
    assert await statuses(host, http_listen=listen) == {403}


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1:8000",
        "127.1.2.3",
        "[::1]",
        "[::1]:8000",
        "host.docker.internal:8000",
    ],
)
async def test_its_own_names_are_not(host: str) -> None:
    assert 403 not in await statuses(host, http_listen="127.0.0.1:8000")


async def test_who_is_refused_is_told_why() -> None:
    async with gateway(host=PAGE, http_listen="127.0.0.1:8000") as (client, _):
        answer = await client.post("/v1/completions", json={"prompt": "a"})
    assert answer.json()["error"]["code"] == "forbidden"
    assert answer.json()["error"]["message"].endswith(
        "where no API keys are needed; got 'evil.example'"
    )


@pytest.mark.parametrize("listen", ["0.0.0.0:8000", "[::]:8000", "orchestrator:8000"])
async def test_services_are_reached_by_any_name(listen: str) -> None:
    assert 403 not in await statuses("orchestrator:8000", http_listen=listen)


@pytest.mark.parametrize("allowed", ["http://page.example, http://other.example", "*"])
async def test_pages_of_allowed_origins_may_call(tmp_path: Path, allowed: str) -> None:
    """A preflight request is answered before there is a key: it cannot carry one."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KeyEntry(name="a", sha256=hash_of(new_key()), tenant="").toml())
    asked = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization, content-type",
             "Access-Control-Request-Private-Network": "true"}  # fmt: skip
    async with gateway(keys=keys, http_allowed_origins=allowed) as (client, _):
        preflight = await client.options("/v1/chat/completions", headers=asked)
        answer = await client.get("/v1/models", headers={"Origin": "http://page.example"})
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    for one in (preflight, answer):
        assert one.headers["access-control-allow-origin"] in ("*", "http://page.example")
    assert answer.status_code == 401


@pytest.mark.parametrize("origins", ["page.example", "https://page.example/", "http://a, b"])
def test_what_is_no_origin_is_refused_at_the_start(origins: str) -> None:
    with pytest.raises(ValidationError, match="or origins such as"):
        OrchestratorSettings(http_allowed_origins=origins)


async def test_pages_of_other_origins_may_not() -> None:
    async with gateway(http_allowed_origins="http://page.example") as (client, _):
        answer = await client.get("/v1/models", headers={"Origin": "http://other.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_keys_and_certificates_are_enough(tmp_path: Path) -> None:
    """A page has no key, and the server has no certificate for the page's name."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KeyEntry(name="a", sha256=hash_of(new_key()), tenant="").toml())
    assert 403 not in await statuses(PAGE, keys=keys)
    pair = Authority(tmp_path / "certificates").pair("server")
    tls = {"tls_certificate": pair.certificate, "tls_key": pair.key}
    assert 403 not in await statuses(PAGE, **tls)
