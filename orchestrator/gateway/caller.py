"""Who asks over HTTP: the key and the tenant that a request's headers name."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.access import Caller, bearer_token
from orchestrator.front import Front

TENANT_HEADER = "x-tenant"


def caller_of(front: Front, headers: Mapping[str, str]) -> Caller:
    """Whose key came with the request. Raises Unauthenticated where one is needed."""
    return front.caller(bearer_token(headers.get("authorization")))


def tenant_of(headers: Mapping[str, str]) -> str:
    """Whose phrases the request asks for; the key may forbid it."""
    return headers.get(TENANT_HEADER, "")
