"""A server on loopback without keys does not serve pages whose host name resolves to it."""

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
async def test_foreign_host_name_is_refused_on_loopback(listen: str, host: str) -> None:
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
async def test_loopback_names_are_accepted(host: str) -> None:
    assert 403 not in await statuses(host, http_listen="127.0.0.1:8000")


async def test_refusal_of_a_host_names_the_reason() -> None:
    async with gateway(host=PAGE, http_listen="127.0.0.1:8000") as (client, _):
        answer = await client.post("/v1/completions", json={"prompt": "a"})
    assert answer.json()["error"]["code"] == "forbidden"
    assert answer.json()["error"]["message"].endswith(
        "where no API keys are needed; got 'evil.example'"
    )


@pytest.mark.parametrize("listen", ["0.0.0.0:8000", "[::]:8000", "orchestrator:8000"])
async def test_any_host_name_is_accepted_beyond_loopback(listen: str) -> None:
    assert 403 not in await statuses("orchestrator:8000", http_listen=listen)


@pytest.mark.parametrize("allowed", ["http://page.example, http://other.example", "*"])
async def test_allowed_origins_pass_cors_preflight(tmp_path: Path, allowed: str) -> None:
    """The preflight request, which carries no key, allows it."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KeyEntry(name="a", sha256=hash_of(new_key()), tenant="").toml())
    request_headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization, content-type",
             "Access-Control-Request-Private-Network": "true"}  # fmt: skip
    async with gateway(keys=keys, http_allowed_origins=allowed) as (client, _):
        preflight = await client.options("/v1/chat/completions", headers=request_headers)
        answer = await client.get("/v1/models", headers={"Origin": "http://page.example"})
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    for response in (preflight, answer):
        assert response.headers["access-control-allow-origin"] in ("*", "http://page.example")
    assert answer.status_code == 401


@pytest.mark.parametrize("origins", ["page.example", "https://page.example/", "http://a, b"])
def test_invalid_allowed_origins_fail_startup(origins: str) -> None:
    with pytest.raises(ValidationError, match="or origins such as"):
        OrchestratorSettings(http_allowed_origins=origins)


async def test_other_origins_get_no_cors_header() -> None:
    async with gateway(http_allowed_origins="http://page.example") as (client, _):
        answer = await client.get("/v1/models", headers={"Origin": "http://other.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_host_is_not_checked_with_keys_or_tls(tmp_path: Path) -> None:
    """A page has no key, and the server's certificate is not for its name."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KeyEntry(name="a", sha256=hash_of(new_key()), tenant="").toml())
    assert 403 not in await statuses(PAGE, keys=keys)
    pair = Authority(tmp_path / "certificates").pair("server")
    tls = {"tls_certificate": pair.certificate, "tls_key": pair.key}
    assert 403 not in await statuses(PAGE, **tls)
