"""The files of a batch: which answers are kept, and which files are refused."""

from __future__ import annotations

import codecs
import errno
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from draftloop.errors import InvalidInput
from orchestrator.batch.answers_file import AnswersFile
from orchestrator.batch.asker import Asker
from orchestrator.batch.batch import Tally, run
from orchestrator.batch.requests_file import BatchRequest, read_requests, read_requests_by_id
from orchestrator.cli import app
from orchestrator.cli_batch import _answer
from orchestrator.cli_common import EXIT_FAILED
from tests.support.ports import quiet_port

REQUEST = BatchRequest(custom_id="a", method="POST", url="/v1/completions", body={"prompt": "x"})


def answer(custom_id: str, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "", "body": {}}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}


def write_answers(file: Path, *answers: dict[str, Any], partial_line: str = "") -> str:
    text = "".join(f"{json.dumps(answer)}\n" for answer in answers)
    file.write_text(text + partial_line)
    return text


def test_resuming_appends_without_rewriting_the_file(tmp_path: Path) -> None:
    """A rewrite needs room for all answers twice; on a full disk no run could continue."""
    file = tmp_path / "answers"
    first = write_answers(file, answer("a"), answer("b"), partial_line='{"id": "batch_req_2", "cus')
    place = file.stat().st_ino
    with AnswersFile(file) as answers:
        assert answers.answered == {"a", "b"}
        answers.add(answer("c"))
    assert file.stat().st_ino == place
    assert file.read_text() == first + json.dumps(answer("c")) + "\n"


@pytest.mark.parametrize("status", [307, 400, 503])
def test_failed_answers_are_removed_on_resume(tmp_path: Path, status: int) -> None:
    """Redirects, as for a URL that ends in a slash, used to count as answers."""
    file = tmp_path / "answers"
    write_answers(file, answer("a", status), answer("b"), answer("b"), partial_line="{")
    with AnswersFile(file) as answers:
        assert answers.answered == {"b"}
        answers.add(answer("a"))
    assert file.read_text() == write_answers(tmp_path / "other", answer("b"), answer("a"))


@pytest.mark.parametrize("content", ["not yours", '{"custom_id": "a"}', "x" * 100])
def test_file_without_answers_is_refused_and_unchanged(tmp_path: Path, content: str) -> None:
    """Another program's file used to be taken for a torn answer and emptied."""
    file = tmp_path / "notes"
    file.write_text(content)
    with pytest.raises(InvalidInput, match="notes, line 1: must be an answer of a batch"):
        AnswersFile(file)
    assert file.read_text() == content


def test_answers_are_written_through_a_link(tmp_path: Path) -> None:
    """`/dev/stdout > answers`: the file used to be replaced, and answers went to the old one."""
    file = tmp_path / "answers"
    write_answers(file, answer("a", 500))
    with (
        file.open("a") as standard_output,
        AnswersFile(Path(f"/dev/fd/{standard_output.fileno()}")) as answers,
    ):
        answers.add(answer("b"))
    assert file.read_text() == write_answers(tmp_path / "other", answer("b"))


def test_second_run_on_the_same_answers_file_is_refused(tmp_path: Path) -> None:
    """The first run's answers since the second began used to be lost."""
    file = tmp_path / "answers"
    for failed in ((), (answer("a", 500),)):
        write_answers(file, *failed)
        with AnswersFile(file), pytest.raises(InvalidInput, match="by one run at a time"):
            AnswersFile(file)
    AnswersFile(file).__exit__()


async def test_full_disk_is_reported(tmp_path: Path) -> None:
    """If there was room again at the end, a traceback of several errors used to be shown."""

    class Full(AnswersFile):
        def add(self, answer: dict[str, Any]) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        with Full(tmp_path / "answers") as full, pytest.raises(OSError, match="No space left"):
            await run_and_tally(client, full)


async def run_and_tally(client: httpx.AsyncClient, answers: AnswersFile) -> Tally:
    asker = Asker(client, patience_s=0)
    return await run(iter([REQUEST]), answers, asker, concurrency=2, report_progress=lambda _: None)


def test_byte_order_mark_of_windows_editors_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    line = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\r\n'
    file.write_bytes(codecs.BOM_UTF8 + line.encode())
    assert [request.custom_id for request in read_requests(file)] == ["a"]


def test_pipe_as_requests_file_is_refused(tmp_path: Path) -> None:
    """A pipe used to be empty at the second reading: nothing was sent, and nothing failed."""
    reading, writing = os.pipe()
    os.write(writing, REQUEST.model_dump_json().encode() + b"\n")
    os.close(writing)
    server = f"http://127.0.0.1:{quiet_port()}"
    arguments = ["batch", f"/dev/fd/{reading}", str(tmp_path / "answers"), "--server", server]
    done = CliRunner().invoke(app, arguments)
    os.close(reading)
    assert done.exit_code == EXIT_FAILED
    assert done.stderr.startswith("draftloop: requests: must be a file, and no pipe: it is read tw")


async def test_requests_added_after_the_check_are_not_sent(tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    added = REQUEST.model_copy(update={"custom_id": "b"})
    lines = (request.model_dump_json() for request in (REQUEST, added, REQUEST))
    requests.write_text("\n".join(lines))
    assert list(read_requests_by_id(requests, {"a"})) == [REQUEST]


async def test_requests_missing_since_the_check_are_reported(tmp_path: Path) -> None:
    """A file truncated meanwhile used to be answered in part without a failure."""
    requests = tmp_path / "requests"
    requests.write_text(REQUEST.model_dump_json())
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    client = httpx.AsyncClient(transport=transport, base_url="http://there")
    with pytest.raises(InvalidInput, match="requests: must stay .*; 2 of its requests are gone"):
        await _answer(client, requests, tmp_path / "answers", {"a", "b", "c"}, 1, 0)
    with AnswersFile(tmp_path / "answers") as answers:
        assert answers.answered == {"a"}


async def test_failure_without_a_message_is_reported_by_its_status(tmp_path: Path) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(307))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        with AnswersFile(tmp_path / "answers") as answers:
            tally = await run_and_tally(client, answers)
    assert (tally.answered, tally.failed, tally.first_failure) == (0, 1, "a: status 307")


@pytest.mark.parametrize("key", ["sesame\n", "sesamé", ""])
def test_invalid_key_is_reported_without_showing_it(tmp_path: Path, key: str) -> None:
    """A key with a line end used to be shown as part of a connection error."""
    requests = tmp_path / "requests"
    requests.write_text(REQUEST.model_dump_json())
    arguments = ["batch", str(requests), str(tmp_path / "answers"), "--api-key", key]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == EXIT_FAILED
    assert done.stderr == "draftloop: api_key: must be printable ASCII, and not empty\n"
