"""The caller and the tenant of an HTTP request, read from its headers."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.access import Caller, bearer_token
from orchestrator.front import Front

TENANT_HEADER, KEY_HEADER = "x-tenant", "x-api-key"


def caller_of(front: Front, headers: Mapping[str, str]) -> Caller:
    """The caller whose key is in OpenAI's header (`authorization`) or Anthropic's (`x-api-key`).

    Raises Unauthenticated if keys are required and the request has none that is known.
    """
    return front.caller(bearer_token(headers.get("authorization")) or headers.get(KEY_HEADER))


def tenant_of(headers: Mapping[str, str]) -> str:
    """The tenant whose phrases the request asks for; its key may forbid it.

    Headers are read as Latin-1. UTF-8 is restored, so that the name equals that in gRPC and keys.
    """
    header = headers.get(TENANT_HEADER, "")
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header
