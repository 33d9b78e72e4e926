"""`draftloop batch`: each request is answered once, as if sent alone, despite interruptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.cli_batch import EXIT_SOME_FAILED
from orchestrator.cli_common import EXIT_FAILED
from tests.support.ports import quiet_port

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": "def main():", "temperature": 0.8, "seed": 3}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    "response": ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
    "message": (
        "/v1/messages",
        {"model": "verifier", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi"}]},
    ),
}  # fmt: skip
LIMITS = {"/v1/completions": {"max_tokens": 16}, "/v1/chat/completions": {"max_tokens": 16}}


def request_line(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def batch_requests() -> list[dict[str, Any]]:
    return [
        request_line(name, url, **LIMITS.get(url, {}), **body)
        for name, (url, body) in ASKED.items()
    ]


def write_lines(file: Path, lines: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return file


def read_answers(file: Path) -> dict[str, dict[str, Any]]:
    """The answers by `custom_id`; each must be on one line only."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    answers = {line["custom_id"]: line for line in lines}
    assert len(answers) == len(lines)
    return answers


def run_batch(server: str, requests: Path, answers: Path, *flags: str) -> Result:
    return CliRunner().invoke(
        app, ["batch", str(requests), str(answers), "--server", server, *flags]
    )


def content_of(body: dict[str, Any]) -> Any:
    """The content of an answer of any of the APIs."""
    return body.get("choices") or body.get("output") or body["content"]


def test_batched_requests_are_answered_as_if_sent_alone(
    base: str, http: httpx.Client, tmp_path: Path
) -> None:
    requests = write_lines(tmp_path / "requests.jsonl", batch_requests())
    result = run_batch(f"{base}/v1/", requests, tmp_path / "answers.jsonl", "--concurrency", "3")
    assert result.exit_code == 0, result.stderr
    assert "4 answered, 0 failed; " in result.stderr
    answers = read_answers(tmp_path / "answers.jsonl")
    assert answers.keys() == ASKED.keys()
    assert all(one["error"] is None and one["response"]["request_id"] for one in answers.values())
    text = answers["text"]["response"]["body"]
    single = http.post("/v1/completions", json=batch_requests()[0]["body"]).json()
    assert text["choices"][0]["text"] == single["choices"][0]["text"]
    assert all(content_of(one["response"]["body"]) for one in answers.values())


def test_repeated_command_resumes_an_interrupted_batch(base: str, tmp_path: Path) -> None:
    requests, file = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    write_lines(requests, batch_requests()[:1])
    assert run_batch(base, requests, file).exit_code == 0
    first = file.read_text()
    file.write_text(first + first[: len(first) // 2])  # as if killed while writing
    write_lines(requests, batch_requests())
    result = run_batch(base, requests, file)
    assert result.exit_code == 0 and "3 answered, 0 failed" in result.stderr, result.stderr
    assert file.read_text().startswith(first) and read_answers(file).keys() == ASKED.keys()
    whole = file.read_text()
    assert "0 answered, 0 failed" in run_batch(base, requests, file).stderr
    assert file.read_text() == whole


def test_failed_requests_are_reported_and_retried_by_the_next_run(
    base: str, tmp_path: Path
) -> None:
    requests, file = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    write_lines(requests, [request_line("bad", prompt="x", max_tokens=-1), batch_requests()[0]])
    result = run_batch(base, requests, file, "--concurrency", "1")
    assert result.exit_code == EXIT_SOME_FAILED
    assert "1 answered, 1 failed" in result.stderr
    assert "the first that failed: bad: max_tokens: must be" in result.stderr
    failed = read_answers(file)["bad"]["response"]
    assert failed["status_code"] == 400 and failed["body"]["error"]["param"] == "max_tokens"
    write_lines(requests, [request_line("bad", prompt="x", max_tokens=1), batch_requests()[0]])
    assert run_batch(base, requests, file).exit_code == 0
    assert {one["response"]["status_code"] for one in read_answers(file).values()} == {200}


GOOD = json.dumps(request_line("a", prompt="x"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "requests: must hold at least one request; got '"),
        ("{\n", "requests.jsonl, line 1: Invalid JSON: "),
        (f"{GOOD}\n\n[]\n", "requests.jsonl, line 3: Input should be "),
        ('{"custom_id": "a"}\n', "requests.jsonl, line 1: method: Field required; got "),
        (GOOD.replace("POST", "GET"), "requests.jsonl, line 1: method: Input should be 'POST'; go"),
        (GOOD.replace("/v1/", "v1/"), "requests.jsonl, line 1: url: must be a path that begins wi"),
        (json.dumps(request_line("a", stream=True)),
         "requests.jsonl, line 1: body: must not ask for a st"),
        (GOOD.replace('"url"', '"uri": 1, "url"'), "requests.jsonl, line 1: uri: Extra inputs are"),
        (f"{GOOD}\n{GOOD}\n", "requests.jsonl: custom_id: must be another one for every request; "),
    ],
)  # fmt: skip
def test_error_in_the_requests_is_one_line_and_nothing_is_sent(
    content: str, problem: str, tmp_path: Path
) -> None:
    requests, file = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    requests.write_text(content)
    result = run_batch(f"http://127.0.0.1:{quiet_port()}", requests, file)
    assert result.exit_code == EXIT_FAILED and not file.exists()
    [line] = result.stderr.splitlines()
    assert line.startswith(f"draftloop: {problem}")


@pytest.mark.parametrize("server", ["127.0.0.1:8000", "ftp://there", "http://", "http://[::1"])
def test_invalid_server_address_is_refused(server: str, tmp_path: Path) -> None:
    requests = write_lines(tmp_path / "requests.jsonl", batch_requests())
    result = run_batch(server, requests, tmp_path / "answers.jsonl")
    assert result.exit_code == EXIT_FAILED
    rule = "must be the address of an HTTP API, such as http://127.0.0.1:8000"
    assert result.stderr == f"draftloop: server: {rule}; got {server!r}\n"


def test_tls_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    """A TLS key without its certificate is refused, even if the system's CAs are trusted."""
    requests = write_lines(tmp_path / "requests.jsonl", batch_requests())
    flags = ("--tls-key", str(tmp_path / "key.pem"))
    result = run_batch("https://127.0.0.1:1", requests, tmp_path / "answers.jsonl", *flags)
    assert result.exit_code == EXIT_FAILED
    assert result.stderr.startswith(
        "draftloop: tls_certificate: must be given together with tls_key"
    )


def test_unreachable_server_is_reported_at_once(tmp_path: Path) -> None:
    requests = write_lines(tmp_path / "requests.jsonl", batch_requests())
    server = f"http://127.0.0.1:{quiet_port()}"
    result = run_batch(server, requests, tmp_path / "answers.jsonl")
    assert result.exit_code == EXIT_FAILED and not (tmp_path / "answers.jsonl").exists()
    assert result.stderr.startswith(f"draftloop: no answer from {server}")


def test_files_that_are_not_batch_answers_are_not_overwritten(base: str, tmp_path: Path) -> None:
    requests, unrelated = (
        write_lines(tmp_path / "requests.jsonl", batch_requests()),
        tmp_path / "notes.txt",
    )
    unrelated.write_text("not yours\n")
    result = run_batch(base, requests, unrelated)
    assert result.exit_code == EXIT_FAILED and unrelated.read_text() == "not yours\n"
    assert "notes.txt, line 1: must be an answer of a batch; name another file" in result.stderr
    unrelated.write_text('{"custom_id": "a", "response": 200}\n')
    assert (
        "notes.txt, line 1: must be an answer of a batch"
        in run_batch(base, requests, unrelated).stderr
    )
    onto_itself = run_batch(base, requests, requests)
    assert (
        onto_itself.exit_code == EXIT_FAILED
        and "answers: must be another file than the re" in onto_itself.stderr
    )
    assert requests.read_text().count("\n") == len(ASKED)
