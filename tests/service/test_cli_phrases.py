"""The `draftloop phrases` commands over a real Redis."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from draftloop.phrase import Phrase
from orchestrator.cli import app
from phrase_store import transfer
from phrase_store.log import START, LogOptions, open_log
from phrase_store.records import encode
from phrase_store.store import PhraseStore
from phrase_store.unpack import decode
from tests.service.conftest import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

ONE, OTHER = Phrase((1, 2), (3, 4)), Phrase((), (70_000,), committed=False)
Run = Callable[..., Result]
Open = Callable[..., PhraseStore]
PATIENT = LogOptions(connect_timeout_s=PATIENCE_S, operation_timeout_s=PATIENCE_S)


@pytest.fixture
def run(server: RedisServer) -> Run:
    """Runs the command on the server's log."""

    def ran(*arguments: str, answer: str = "") -> Result:
        environment = {"DRAFTLOOP_PHRASE_LOG": server.url, "COLUMNS": "200"}
        return CliRunner().invoke(app, ["phrases", *arguments], input=answer, env=environment)

    return ran


def append_record(url: str, name: str, *records: bytes) -> None:
    log = open_log(url, name, PATIENT)
    log.append(records)
    log.close()


def read_phrases(url: str, name: str) -> list[Phrase]:
    log = open_log(url, name, PATIENT)
    batches = [decode(entry.record) for entry in log.read(START, 1000)]
    log.close()
    return [phrase for batch in batches if batch for phrase in batch.phrases]


def test_stats_count_by_model_and_tenant(server: RedisServer, run: Run) -> None:
    append_record(server.url, "aaaa:", encode(1, [ONE, OTHER]), b"damaged")
    append_record(server.url, "aaaa:[red]acme", encode(2, [ONE]))
    result = run("stats")
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if "aaaa" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[:5] + row[6:] for row in cells] == [
        ["aaaa", "none", "2", "2", "3", "1"],
        ["aaaa", "[red]acme", "1", "1", "2", "0"],
    ]
    assert "acme" not in run("stats", "--tenant", "").output


def test_exported_phrases_can_be_imported(server: RedisServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "phrases.jsonl"
    append_record(
        server.url, "aaaa:", encode(1, [ONE, OTHER]), b"damaged", encode(2**64 - 1, [OTHER])
    )
    append_record(server.url, "aaaa:acme", encode(2, [ONE]))
    assert run("export", str(file)).exit_code == 0
    assert file.stat().st_mode & 0o077 == 0
    refused = run("export", str(file))
    assert refused.exit_code == 2 and "file: must not exist" in refused.output
    assert run("clear", "--yes").exit_code == 0 and read_phrases(server.url, "aaaa:") == []
    result = run("import", str(file))
    assert result.exit_code == 0 and "4 phrases in 3 records" in result.output
    assert read_phrases(server.url, "aaaa:") == [ONE, OTHER, OTHER]
    assert read_phrases(server.url, "aaaa:acme") == [ONE]


def test_reimported_phrases_reach_a_process_that_had_them_before_clearing(
    server: RedisServer, open_store: Open, run: Run, tmp_path: Path
) -> None:
    serving = open_store(server.url)
    namespace, file = serving.namespace("aaaa"), tmp_path / "phrases.jsonl"
    namespace.publish(7, [ONE])
    until(lambda: read_phrases(server.url, "aaaa:") == [ONE])
    assert run("export", str(file)).exit_code == 0 and run("clear", "--yes").exit_code == 0
    until(lambda: not namespace.figures().entries)
    assert run("import", str(file)).exit_code == 0
    until(lambda: namespace.figures().entries > 0)


def test_phrases_of_a_lost_log_can_be_cleared_by_model_and_tenant(
    server: RedisServer, open_store: Open, run: Run
) -> None:
    serving = open_store(server.url)
    namespace = serving.namespace("aaaa", "acme")
    namespace.publish(7, [ONE])
    until(lambda: read_phrases(server.url, "aaaa:acme") == [ONE])
    with server.client() as client:
        client.flushall()
    result = run("clear", "--yes")
    assert "name --model and --tenant" in " ".join(result.output.split())
    assert namespace.figures().entries
    assert run("clear", "--yes", "--model", "aaaa", "--tenant", "acme").exit_code == 0
    until(lambda: not namespace.figures().entries)


def test_stats_ignore_foreign_keys(server: RedisServer, run: Run) -> None:
    append_record(server.url, "aaaa:", encode(1, [ONE]))
    with server.client() as client:
        client.xadd(b"draftloop:phrases:\xff", {"r": b"x"})
        client.set("draftloop:phrases:bbbb:", "text")
    result = run("stats")
    assert result.exit_code == 0 and "aaaa" in result.output and "bbbb" not in result.output


def test_export_replaces_the_file_only_when_complete(
    server: RedisServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "phrases.jsonl"
    file.write_text("kept")
    file.chmod(0o644)
    append_record(server.url, "aaaa:", encode(1, [ONE]))
    with monkeypatch.context() as broken:
        broken.setattr(transfer, "export_log", lambda *_: 1 / 0)
        assert run("export", str(file), "--force").exception is not None
    assert file.read_text() == "kept" and list(tmp_path.glob("phrases.jsonl*")) == [file]
    assert run("export", str(file), "--force").exit_code == 0
    assert file.stat().st_mode & 0o077 == 0 and "aaaa" in file.read_text()


def test_clear_asks_for_confirmation_and_reaches_following_processes(
    server: RedisServer, open_store: Open, run: Run
) -> None:
    following = open_store(server.url)
    append_record(server.url, "aaaa:acme", encode(1, [ONE]))
    append_record(server.url, "aaaa:", encode(1, [ONE]))
    namespace = following.namespace("aaaa", "acme")
    assert namespace.wait_replayed(20) and namespace.figures().entries
    refused = run("clear", "--tenant", "acme", answer="n\n")
    assert refused.exit_code == 1 and read_phrases(server.url, "aaaa:acme") == [ONE]
    assert run("clear", "--tenant", "acme", answer="y\n").exit_code == 0
    until(lambda: not namespace.figures().entries)
    assert read_phrases(server.url, "aaaa:") == [ONE]


def test_a_tenant_is_shown_by_its_own_name(server: RedisServer, run: Run) -> None:
    """`:key:` was shown as the picture of a key, also where the question was what to empty."""
    append_record(server.url, "aaaa:acme:key:eu", encode(1, [ONE]))
    assert "acme:key:eu" in run("stats").output
    assert "  aaaa:acme:key:eu\n" in run("clear", answer="n\n").output


GOOD = {"model": "aaaa", "tenant": "", "origin": 1, "phrases": [[[1], [2], True]]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"origin": -1}, "line 3, origin: input should be greater than or equal to 0; got -1"),
        ({"origin": 2**64}, "line 3, origin: input should be less than"),
        ({"model": "a:b"}, "line 3, model: string should match"),
        ({"color": "red"}, "line 3, color: extra inputs are not permitted; got 'red'"),
        ({"phrases": [[[1] * 9, [2], True]]}, "line 3, phrases.0.0: list should have at most 8"),
        ({"phrases": [[[1], [], True]]}, "line 3, phrases.0.1: list should have at least 1"),
        ({"phrases": [[[1], [2**31], True]]}, "line 3, phrases.0.1.0: input should be less than"),
    ],
)
def test_import_names_an_error_in_the_file_and_imports_nothing(
    server: RedisServer, run: Run, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    file = tmp_path / "phrases.jsonl"
    header = {"format": "draftloop-phrases", "version": 1}
    lines = [json.dumps(value) for value in (header, GOOD, {**GOOD, **change})]
    file.write_text("\n".join(lines))
    result = run("import", str(file))
    assert result.exit_code == 2 and words in result.output
    assert read_phrases(server.url, "aaaa:") == []


def test_import_refuses_a_file_that_is_not_utf_8(
    server: RedisServer, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "phrases.jsonl"
    header = {"format": "draftloop-phrases", "version": 1}
    tenants = [{**GOOD, "tenant": tenant} for tenant in ("", "Müller", "Möller")]
    lines = [json.dumps(value, ensure_ascii=False) for value in (header, *tenants)]
    file.write_text("\n".join(lines), encoding="latin-1")
    result = run("import", str(file))
    assert result.exit_code == 2 and "line 3: must be UTF-8; got " in result.output
    assert read_phrases(server.url, "aaaa:") == []


def test_import_reads_from_a_pipe(server: RedisServer, run: Run, tmp_path: Path) -> None:
    """The import reads the file twice, but a pipe can be read only once."""
    file = tmp_path / "phrases.jsonl"
    append_record(server.url, "aaaa:", encode(1, [ONE, OTHER]))
    assert run("export", str(file)).exit_code == 0 and run("clear", "--yes").exit_code == 0
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb") as pipe:
        pipe.write(file.read_bytes())
        pipe.close()
        result = run("import", f"/dev/fd/{reading}")
    assert result.exit_code == 0 and "2 phrases in 1 records" in result.output
    assert read_phrases(server.url, "aaaa:") == [ONE, OTHER]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: "),
        ("not json", "line 1: invalid JSON"),
        ('{"format": "other", "version": 1}', "line 1, format: "),
        ('{"format": "draftloop-phrases", "version": 2}', "line 1, version: "),
    ],
)
def test_import_refuses_files_of_other_formats(
    run: Run, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "phrases.jsonl"
    file.write_text(text)
    result = run("import", str(file))
    assert result.exit_code == 2 and words in result.output


def test_failures_are_reported_in_one_line(server: RedisServer, run: Run) -> None:
    for arguments, words in (
        (("stats", "--phrases-url", "memory://"), "must name a log that processes share"),
        (("stats", "--phrase-log", "http://u:secret@h"), "must start with one of"),
        (("import", "nowhere.jsonl"), "nowhere.jsonl"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and words in result.output and "secret" not in result.output
    server.kill()
    result = run("stats")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1
