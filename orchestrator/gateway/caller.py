"""Who asks: the one place that says what a request's credentials are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TENANT_HEADER = "x-tenant"
SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose phrases a request reads and writes; empty where there are no tenants."""

    tenant: str = ""


def caller(token: str | None, headers: Mapping[str, str]) -> Caller:
    """Everyone is welcome, whatever the token: the server is for a network that is trusted."""
    return Caller(tenant=headers.get(TENANT_HEADER, ""))


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer`; None where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == SCHEME and token.strip() else None
