"""What a line says of the request that it belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.contextvars import bound_contextvars, get_contextvars

from draftloop.logs import bind_request, session_name


def bound(role: str, name: str) -> dict[str, Any]:
    with bound_contextvars(role=role, request_id=None, session_id=None):
        bind_request(name)
        said = get_contextvars()
        return {key: said[key] for key in ("request_id", "session_id")}


@pytest.mark.parametrize("request_id", ["a1b2", "batch.17", "a b", "."])
def test_a_model_service_knows_request_and_session(request_id: str) -> None:
    first, again = session_name(request_id, 4), session_name(request_id, 12)
    assert bound("verifier", first) == {"request_id": request_id, "session_id": first}
    assert bound("drafter", again) == {"request_id": request_id, "session_id": again}
    assert bound("orchestrator", request_id) == {"request_id": request_id, "session_id": None}


@pytest.mark.parametrize("session", ["", "warm-up", ".3", "a.b"])
def test_a_session_of_somebody_elses_has_its_own_name(session: str) -> None:
    assert bound("verifier", session) == {"request_id": session, "session_id": session}
