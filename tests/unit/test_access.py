"""API keys: which are known, their tenants and their limits."""

from __future__ import annotations

import codecs
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs
from typer.testing import CliRunner

from draftloop.errors import Forbidden, InvalidInput, Overloaded, StartupFailure, Unauthenticated
from draftloop.request import GenerationParameters
from orchestrator.access import ANONYMOUS, Access, Caller, bearer_token
from orchestrator.cli import app
from orchestrator.key_file import KeyEntry, KeyFile, hash_of

KEY, OTHER = "dl-" + "a" * 43, "dl-" + "b" * 43  # constants: names of cases contain them


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def entry(name: str = "alice", key: str = KEY, **fields: Any) -> KeyEntry:
    return KeyEntry(**{"name": name, "sha256": hash_of(key), "tenant": "team", **fields})


def write(file: Path, *entries: KeyEntry) -> None:
    """Replaces the file in one step, as secret managers do."""
    partial = file.with_suffix(".partial")
    partial.write_text("".join(entry.toml() for entry in entries))
    os.replace(partial, file)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_all_requests_are_allowed_without_a_key_file() -> None:
    caller = Access(None).caller(None)
    assert caller is ANONYMOUS
    parameters = GenerationParameters(text="a", tenant="any", max_tokens=10**6)
    assert caller.apply_limits(parameters, 16) is parameters
    for _ in range(100):
        with caller.admit():
            pass


def test_known_key_identifies_the_caller(key_file: Path) -> None:
    write(key_file, entry(), entry("bob", OTHER))
    access = Access(key_file)
    assert access.caller(KEY).name == "alice" and access.caller(OTHER).name == "bob"
    for unknown in (None, "", KEY + "x", hash_of(KEY), "ключ"):
        with pytest.raises(Unauthenticated) as caught:
            access.caller(unknown)
        assert KEY not in str(caught.value)


@pytest.mark.parametrize("token", [None, ""])
def test_missing_key_is_refused_with_a_hint(key_file: Path, token: str | None) -> None:
    """A header without a value counts as no key."""
    write(key_file, entry())
    with pytest.raises(Unauthenticated, match="must be given as"):
        Access(key_file).caller(token)


def test_key_is_bound_to_its_tenant() -> None:
    caller = Caller(entry())
    for tenant in ("", "team"):
        assert (
            caller.apply_limits(GenerationParameters(text="a", tenant=tenant), 16).tenant == "team"
        )
    with pytest.raises(Forbidden, match="tenant: must be 'team'"):
        caller.apply_limits(GenerationParameters(text="a", tenant="other"), 16)
    with pytest.raises(Forbidden):
        Caller(entry(tenant="")).apply_limits(GenerationParameters(text="a", tenant="other"), 16)


def test_max_tokens_of_a_key_limits_requests() -> None:
    caller = Caller(entry(max_tokens=100))
    with pytest.raises(InvalidInput, match="max_tokens: must be at most 100, .*; got 101"):
        caller.apply_limits(GenerationParameters(text="a", max_tokens=101), 256)
    for requested, default, expected in ((100, 256, 100), (None, 256, 100), (None, 16, 16)):
        parameters = GenerationParameters(text="a", max_tokens=requested)
        assert caller.apply_limits(parameters, default).max_tokens == expected


def test_concurrent_requests_of_a_key_are_limited() -> None:
    caller = Caller(entry(concurrent_requests=2))
    refused = pytest.raises(Overloaded, match="api key: requests: at most 2")
    with caller.admit(), caller.admit(), refused, caller.admit():
        pass
    with caller.admit():
        pass


def test_requests_per_minute_of_a_key_are_limited() -> None:
    clock = Clock()
    caller = Caller(entry(requests_per_minute=3), clock)
    for _ in range(3):
        caller.count_requests()
    with pytest.raises(Overloaded, match="at most 3 requests a minute") as caught:
        caller.count_requests()
    assert caught.value.retry_after_s == 20
    clock.now += 20.01
    caller.count_requests()
    clock.now += 3600  # no more than a minute's requests are saved up
    for _ in range(3):
        caller.count_requests()
    with pytest.raises(Overloaded):
        caller.count_requests()


def test_changed_key_entry_takes_effect(key_file: Path) -> None:
    clock = Clock()
    write(key_file, entry(max_tokens=5))
    access = Access(key_file, clock)
    assert access.caller(KEY).apply_limits(GenerationParameters(text="a"), 16).max_tokens == 5
    write(key_file, entry(key=OTHER, max_tokens=7))
    clock.now += 2
    assert access.caller(OTHER).apply_limits(GenerationParameters(text="a"), 16).max_tokens == 7
    with pytest.raises(Unauthenticated):
        access.caller(KEY)


def test_key_file_is_read_once_per_change(key_file: Path) -> None:
    clock = Clock()
    write(key_file, entry())
    access = Access(key_file, clock)
    write(key_file, entry(max_tokens=5))
    with capture_logs() as lines:
        for _ in range(3):
            clock.now += 2
            access.caller(KEY)
    assert [line["event"] for line in lines] == ["api keys read"]


def test_rate_limit_refusal_reports_the_remaining_wait() -> None:
    clock = Clock()
    caller = Caller(entry(requests_per_minute=3), clock)
    caller.count_requests(3)
    clock.now += 15  # three quarters of the next request
    with pytest.raises(Overloaded) as caught:
        caller.count_requests()
    assert caught.value.retry_after_s == 5


def test_tenant_with_control_characters_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be at most 128 printable characters"):
        entry(tenant="a\nb")


def test_admitting_a_counted_request_does_not_count_it_again() -> None:
    caller = Caller(entry(requests_per_minute=1), Clock())
    caller.count_requests()
    for _ in range(5):
        with caller.admit():
            pass


def test_key_file_is_reloaded_when_it_changes(key_file: Path) -> None:
    clock = Clock()
    write(key_file, entry(requests_per_minute=1), entry("bob", OTHER))
    access = Access(key_file, clock)
    access.caller(KEY).count_requests()
    write(key_file, entry(requests_per_minute=1))
    clock.now += 2
    with pytest.raises(Unauthenticated):
        access.caller(OTHER)
    with pytest.raises(Overloaded):
        access.caller(KEY).count_requests()  # an unchanged entry keeps its counts
    key_file.write_text("[[keys]]\nname = 7\n")
    clock.now += 2
    with capture_logs() as lines:
        assert access.caller(KEY).name == "alice"
        access.caller(KEY)
    assert [line["event"] for line in lines] == ["api keys not renewed"]
    key_file.unlink()
    clock.now += 2
    assert access.caller(KEY).name == "alice"


def test_known_keys_stay_valid_while_the_file_is_being_written(key_file: Path) -> None:
    """A file that is written in place is empty for a moment."""
    clock = Clock()
    write(key_file, entry())
    access = Access(key_file, clock)
    key_file.write_text("")
    clock.now += 2
    assert access.caller(KEY).name == "alice"
    write(key_file, entry("bob", OTHER))
    clock.now += 2
    assert access.caller(OTHER).name == "bob"
    with pytest.raises(Unauthenticated):
        access.caller(KEY)


def test_change_with_an_unchanged_mtime_is_noticed(key_file: Path) -> None:
    """Otherwise a key written after the read would stay unknown for good."""
    clock = Clock()
    write(key_file, entry())
    access = Access(key_file, clock)
    mtime_ns = key_file.stat().st_mtime_ns
    with key_file.open("a") as file:
        file.write(entry("bob", OTHER).toml())
    os.utime(key_file, ns=(mtime_ns, mtime_ns))
    clock.now += 2
    assert access.caller(OTHER).name == "bob"


def test_key_file_with_bom_and_crlf_is_read(key_file: Path) -> None:
    text = entry().toml().replace("\n", "\r\n")
    key_file.write_bytes(codecs.BOM_UTF8 + text.encode())
    assert Access(key_file).caller(KEY).name == "alice"


def test_toml_error_names_the_line_but_no_key(key_file: Path) -> None:
    key_file.write_text(entry().toml() + f'name = "{OTHER}"\n')
    with pytest.raises(StartupFailure, match=r"is not a TOML file \(at line 5, ") as caught:
        Access(key_file)
    assert OTHER not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("keys = 3", "keys: "),
        (f'[[keys]]\nname = "a"\nsha256 = "{KEY}"\ntenant = ""', "keys.0.sha256: "),
        ('[[keys]]\nname = "a"\n', "keys.0.tenant: Field required"),
        (entry().toml() + entry("bob").toml(), "hashes must differ"),
        (entry().toml() + entry(key=OTHER).toml(), "names must differ: alice"),
        (entry().toml() + "speed = 9\n", "keys.0.speed: "),
        (f"key = {KEY}", "is not a TOML file"),
        (entry().toml().replace(hash_of(KEY), hash_of("")), "not that of an empty text"),
    ],
)
def test_invalid_key_file_fails_startup_without_showing_keys(
    key_file: Path, text: str, words: str
) -> None:
    key_file.write_text(text)
    with pytest.raises(StartupFailure, match="api_keys: ") as caught:
        Access(key_file)
    assert words in str(caught.value) and KEY not in str(caught.value)


def test_missing_key_file_fails_startup(key_file: Path) -> None:
    with pytest.raises(StartupFailure, match="keys.toml cannot be read: No such file"):
        Access(key_file)


def test_bearer_token_is_parsed_from_the_header() -> None:
    assert bearer_token("Bearer dl-x") == bearer_token("bearer  dl-x ") == "dl-x"
    for header in (None, "", "Bearer", "Bearer ", "Basic dl-x", "dl-x"):
        assert bearer_token(header) is None


def test_keys_new_command_creates_an_entry_and_a_key(key_file: Path) -> None:
    command = ["keys", "new", "bob", "--tenant", 'a "b" \\', "--concurrent-requests", "4"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    key_file.write_text(result.stdout)
    (saved,) = KeyFile.read(key_file).keys
    assert tomllib.loads(result.stdout)["keys"] == [saved.model_dump(exclude_none=True)]
    assert (saved.tenant, saved.concurrent_requests, saved.max_tokens) == ('a "b" \\', 4, None)
    key = result.stderr.split()[-1]
    assert Access(key_file).caller(key).name == "bob" and key not in result.stdout
    assert CliRunner().invoke(app, ["keys", "new", "b b"]).exit_code == 2


def test_requests_are_admitted_all_together_or_not_at_all() -> None:
    """A refused request uses up nothing; more than the key's limit at once is never admitted."""
    caller = Caller(entry(concurrent_requests=2, requests_per_minute=3))
    assert caller.max_concurrent == 2 and ANONYMOUS.max_concurrent is None
    with caller.admit(1):
        with pytest.raises(Overloaded), caller.admit(2):
            pass
        with caller.admit(1):
            pass
    caller.count_requests(2)
    with pytest.raises(Overloaded, match="a minute"):
        caller.count_requests(2)
    caller.count_requests(1)
