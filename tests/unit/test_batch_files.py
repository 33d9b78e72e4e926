"""The files of a batch: which answers are kept, and which files are refused."""

from __future__ import annotations

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
from orchestrator.batch.requests_file import BatchRequest, read_requests_by_id
from orchestrator.cli import app
from orchestrator.cli_batch import _answer
from orchestrator.cli_common import EXIT_FAILED
from tests.support.ports import quiet_port

REQUEST = BatchRequest(custom_id="a", method="POST", url="/v1/completions", body={"prompt": "x"})


def answer(custom_id: str, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "", "body": {}}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}


def written(file: Path, *answers: dict[str, Any], torn: str = "") -> str:
    text = "".join(f"{json.dumps(one)}\n" for one in answers)
    file.write_text(text + torn)
    return text


def test_what_was_answered_is_not_written_anew(tmp_path: Path) -> None:
    """A rewrite needs room for all answers twice; on a full disk no run could continue."""
    file = tmp_path / "answers"
    first = written(file, answer("a"), answer("b"), torn='{"id": "batch_req_2", "cus')
    place = file.stat().st_ino
    with AnswersFile(file) as there:
        assert there.answered == {"a", "b"}
        there.add(answer("c"))
    assert file.stat().st_ino == place
    assert file.read_text() == first + json.dumps(answer("c")) + "\n"


@pytest.mark.parametrize("status", [307, 400, 503])
def test_what_failed_makes_room(tmp_path: Path, status: int) -> None:
    """Redirects, as for a URL that ends in a slash, used to count as answers."""
    file = tmp_path / "answers"
    written(file, answer("a", status), answer("b"), answer("b"), torn="{")
    with AnswersFile(file) as there:
        assert there.answered == {"b"}
        there.add(answer("a"))
    assert file.read_text() == written(tmp_path / "other", answer("b"), answer("a"))


@pytest.mark.parametrize("content", ["not yours", '{"custom_id": "a"}', "x" * 100])
def test_a_file_of_one_line_without_an_end_is_somebody_elses(tmp_path: Path, content: str) -> None:
    """Another program's file used to be taken for a torn answer and emptied."""
    file = tmp_path / "notes"
    file.write_text(content)
    with pytest.raises(InvalidInput, match="notes, line 1: must be an answer of a batch"):
        AnswersFile(file)
    assert file.read_text() == content


def test_what_is_behind_a_link_is_written_to(tmp_path: Path) -> None:
    """`/dev/stdout > answers`: the file used to be replaced, and answers went to the old one."""
    file = tmp_path / "answers"
    written(file, answer("a", 500))
    with (
        file.open("a") as standard_output,
        AnswersFile(Path(f"/dev/fd/{standard_output.fileno()}")) as there,
    ):
        there.add(answer("b"))
    assert file.read_text() == written(tmp_path / "other", answer("b"))


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    """The first run's answers since the second began used to be lost."""
    file = tmp_path / "answers"
    for failed in ((), (answer("a", 500),)):
        written(file, *failed)
        with AnswersFile(file), pytest.raises(InvalidInput, match="by one run at a time"):
            AnswersFile(file)
    AnswersFile(file).__exit__()


async def test_a_disk_that_is_full_is_told(tmp_path: Path) -> None:
    """If there was room again at the end, a traceback of several errors used to be shown."""

    class Full(AnswersFile):
        def add(self, answer: dict[str, Any]) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        with Full(tmp_path / "answers") as full, pytest.raises(OSError, match="No space left"):
            await tally_of(client, full)


async def tally_of(client: httpx.AsyncClient, answers: AnswersFile) -> Tally:
    asker = Asker(client, patience_s=0)
    return await run(iter([REQUEST]), answers, asker, concurrency=2, report_progress=lambda _: None)


def test_a_pipe_is_no_file_of_requests(tmp_path: Path) -> None:
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


async def test_what_a_file_grew_by_since_it_was_checked_is_not_asked(tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    other = REQUEST.model_copy(update={"custom_id": "b"})
    lines = (one.model_dump_json() for one in (REQUEST, other, REQUEST))
    requests.write_text("\n".join(lines))
    assert list(read_requests_by_id(requests, {"a"})) == [REQUEST]


async def test_requests_that_are_gone_since_they_were_checked_are_missed(tmp_path: Path) -> None:
    """A file truncated meanwhile used to be answered in part without a failure."""
    requests = tmp_path / "requests"
    requests.write_text(REQUEST.model_dump_json())
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    client = httpx.AsyncClient(transport=transport, base_url="http://there")
    with pytest.raises(InvalidInput, match="requests: must stay .*; 2 of its requests are gone"):
        await _answer(client, requests, tmp_path / "answers", {"a", "b", "c"}, 1, 0)
    with AnswersFile(tmp_path / "answers") as there:
        assert there.answered == {"a"}


async def test_a_failure_without_a_word_is_told_by_its_status(tmp_path: Path) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(307))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as client:
        with AnswersFile(tmp_path / "answers") as answers:
            tally = await tally_of(client, answers)
    assert (tally.answered, tally.failed, tally.first_failure) == (0, 1, "a: status 307")


@pytest.mark.parametrize("key", ["sesame\n", "sesamé", ""])
def test_a_key_that_cannot_be_sent_is_told_and_not_shown(tmp_path: Path, key: str) -> None:
    """A key with a line end used to be shown as part of a connection error."""
    requests = tmp_path / "requests"
    requests.write_text(REQUEST.model_dump_json())
    arguments = ["batch", str(requests), str(tmp_path / "answers"), "--api-key", key]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == EXIT_FAILED
    assert done.stderr == "draftloop: api_key: must be printable ASCII, and not empty\n"
