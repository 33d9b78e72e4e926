"""Who asks over HTTP: the key and the tenant that a request's headers name."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.access import Caller, bearer_token
from orchestrator.front import Front

TENANT_HEADER, KEY_HEADER = "x-tenant", "x-api-key"


def caller_of(front: Front, headers: Mapping[str, str]) -> Caller:
    """Whose key came with the request: as OpenAI's clients send it, or as Anthropic's.

    Raises Unauthenticated where one is needed.
    """
    return front.caller(bearer_token(headers.get("authorization")) or headers.get(KEY_HEADER))


def tenant_of(headers: Mapping[str, str]) -> str:
    """Whose phrases the request asks for; the key may forbid it.

    Headers come as Latin-1; what is UTF-8 is the name that gRPC's clients and keys have.
    """
    said = headers.get(TENANT_HEADER, "")
    try:
        return said.encode("latin-1").decode()
    except UnicodeError:
        return said
