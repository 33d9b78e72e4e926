"""A client of a deployment's HTTP API, as the command line's options describe it."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from draftloop.bearer import bearer
from draftloop.errors import InvalidInput
from draftloop.pem import no_password, require_client_files

CONNECT_TIMEOUT_S = 10


def connect(
    server: str,
    *,
    api_key: str | None,
    timeout_s: float,
    concurrency: int,
    tls_ca: Path | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    tls_server_name: str = "",
) -> httpx.AsyncClient:
    """An HTTP client with these options.

    For `https://` servers, the system's authorities are trusted unless `tls_ca` is given. Their
    certificates must name `tls_server_name` or, without that, the host of the address. Given files
    require such a server: the key and the prompts would be sent unencrypted to another.

    Raises InvalidInput for an invalid address or key, StartupFailure for unusable files.
    """

    async def name_server(request: httpx.Request) -> None:
        request.extensions["sni_hostname"] = tls_server_name

    return httpx.AsyncClient(
        base_url=_base_url(server, encrypted=tls_ca is not None or tls_certificate is not None),
        headers={"authorization": bearer(api_key)} if api_key is not None else {},
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S, pool=None),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        verify=_ssl_context(tls_ca, tls_certificate, tls_key),
        event_hooks={"request": [name_server] if tls_server_name else []},
        trust_env=False,  # proxies of the environment are not used anywhere here
    )


def _base_url(server: str, *, encrypted: bool) -> str:
    """The address without the /v1 that OpenAI's clients want: requests' paths have it.

    `encrypted`: it must be one that uses TLS.
    """
    try:
        url = httpx.URL(server)
    except httpx.InvalidURL:
        url = httpx.URL("")
    is_port = url.port is None or 0 < url.port < 65536
    if url.scheme not in ("http", "https") or not url.host or not is_port:
        rule = "must be the address of an HTTP API, such as http://127.0.0.1:8000"
        raise InvalidInput("server", rule, server)
    if encrypted and url.scheme != "https":
        raise InvalidInput("server", "must be https://… where TLS files are given", server)
    return str(url).rstrip("/").removesuffix("/v1")


def _ssl_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    require_client_files("tls", ca=ca, certificate=certificate, key=key)
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        context.load_cert_chain(certificate, key, no_password)
    return context
