"""Log lines name their request; lines that nobody reads are dropped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars, get_contextvars

from draftloop.config import ServiceSettings
from draftloop.logs import bind_request, session_name
from draftloop.rpc.role import STARTUP_FAILED, run_role


def bound_ids(role: str, name: str) -> dict[str, Any]:
    with bound_contextvars(role=role, request_id=None, session_id=None):
        bind_request(name)
        context = get_contextvars()
        return {key: context[key] for key in ("request_id", "session_id")}


@pytest.mark.parametrize("request_id", ["a1b2", "batch.17", "a b", "."])
def test_model_service_logs_request_and_session(request_id: str) -> None:
    first, again = session_name(request_id, 4), session_name(request_id, 12)
    assert bound_ids("verifier", first) == {"request_id": request_id, "session_id": first}
    assert bound_ids("drafter", again) == {"request_id": request_id, "session_id": again}
    assert bound_ids("orchestrator", request_id) == {"request_id": request_id, "session_id": None}


@pytest.mark.parametrize("session", ["", "warm-up", ".3", "a.b"])
def test_foreign_session_name_is_used_as_request_and_session(session: str) -> None:
    # A session id of another form is taken as the request id, too.
    assert bound_ids("verifier", session) == {"request_id": session, "session_id": session}


THREADED_PROGRAM = """
import threading
from draftloop import logs
logs.configure("drafter", log_format="json", level="info")
thread = threading.Thread(target=lambda: logs.get("test").info("said"))
thread.start()
thread.join()
"""


def test_lines_of_threads_name_the_role() -> None:
    """A thread begins with no context variables. Lines about the phrase log had no role."""
    done = subprocess.run([sys.executable, "-c", THREADED_PROGRAM], capture_output=True, text=True)
    assert json.loads(done.stderr)["role"] == "drafter"


LOGGING_PROGRAM = """
import sys, time
from draftloop import logs
logs.configure("orchestrator", log_format="json", level="info")
log = logs.get("test")
for number in range(3000):
    log.info("said", number=number, more="x" * (9000 if number % 100 == 50 else 100))
print("done", flush=True)
input()
tries = 0
while sys.stderr._dropped:  # until the reader has made room
    log.info("said", number=3000 + tries)
    tries += 1
    time.sleep(0.01)
log.info("said", number=-1, tries=tries)
"""


def test_stalled_log_reader_does_not_block() -> None:
    """With a full pipe lines are lost, and a later line says how many."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", LOGGING_PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        _, stderr = process.communicate("go on\n")
    *before, dropped, first, last = stderr.splitlines()
    tries = json.loads(last)["tries"]
    assert json.loads(first)["number"] == 3000 + tries - 1
    report = json.loads(dropped)
    whole = [line for line in before if line.endswith("}")]
    assert report["event"] == "log lines dropped" and report["lines"] == 3000 + tries - 1 - len(
        whole
    )
    assert [json.loads(line)["number"] for line in whole] == sorted({*range(3000)})[: len(whole)]


def test_closed_standard_error_keeps_the_exit_status() -> None:
    """A failed start keeps its exit status if its message cannot be written."""
    role = f"{sys.executable} -m drafter_service --model /nowhere --listen 127.0.0.1:0 2>&-"
    assert subprocess.run(["sh", "-c", role], check=False).returncode == STARTUP_FAILED


@pytest.mark.parametrize(("configured", "expected"), [(None, "ERROR"), ("DEBUG", "DEBUG")])
def test_grpc_logs_errors_only_unless_configured(
    monkeypatch: pytest.MonkeyPatch, configured: str | None, expected: str
) -> None:
    """gRPC's log lines are not JSON; its core reads the variable at import."""
    monkeypatch.setenv("GRPC_VERBOSITY", configured or "")
    if configured is None:
        monkeypatch.delenv("GRPC_VERBOSITY")

    async def serve(_: ServiceSettings) -> None:
        raise AssertionError("was not to begin")

    with pytest.raises(SystemExit):
        run_role("any", ServiceSettings, serve, ["--no-such-flag"])
    assert os.environ["GRPC_VERBOSITY"] == expected
