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
from orchestrator.key_file import KeyEntry, KeyFile, hash_of, new_key

KEY = new_key()
OTHER = new_key()


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def entry(name: str = "alice", key: str = KEY, **more: Any) -> KeyEntry:
    return KeyEntry(**{"name": name, "sha256": hash_of(key), "tenant": "team", **more})


def write(file: Path, *entries: KeyEntry) -> None:
    """Replaces the file in one step, as secret managers do."""
    partial = file.with_suffix(".partial")
    partial.write_text("".join(each.toml() for each in entries))
    os.replace(partial, file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_without_a_file_everybody_may_ask_for_anything() -> None:
    caller = Access(None).caller(None)
    assert caller is ANONYMOUS
    said = GenerationParameters(text="a", tenant="any", max_tokens=10**6)
    assert caller.apply_limits(said, 16) is said
    for _ in range(100):
        with caller.admit():
            pass


def test_a_known_key_says_who_calls(file: Path) -> None:
    write(file, entry(), entry("bob", OTHER))
    access = Access(file)
    assert access.caller(KEY).name == "alice" and access.caller(OTHER).name == "bob"
    for unknown in (None, "", KEY + "x", hash_of(KEY), "ключ"):
        with pytest.raises(Unauthenticated) as caught:
            access.caller(unknown)
        assert KEY not in str(caught.value)


@pytest.mark.parametrize("token", [None, ""])
def test_no_key_is_asked_for(file: Path, token: str | None) -> None:
    """A header without a value counts as no key."""
    write(file, entry())
    with pytest.raises(Unauthenticated, match="must be given as"):
        Access(file).caller(token)


def test_a_key_is_bound_to_its_tenant() -> None:
    caller = Caller(entry())
    for tenant in ("", "team"):
        assert (
            caller.apply_limits(GenerationParameters(text="a", tenant=tenant), 16).tenant == "team"
        )
    with pytest.raises(Forbidden, match="tenant: must be 'team'"):
        caller.apply_limits(GenerationParameters(text="a", tenant="other"), 16)
    with pytest.raises(Forbidden):
        Caller(entry(tenant="")).apply_limits(GenerationParameters(text="a", tenant="other"), 16)


def test_the_keys_most_tokens() -> None:
    caller = Caller(entry(max_tokens=100))
    with pytest.raises(InvalidInput, match="max_tokens: must be at most 100, .*; got 101"):
        caller.apply_limits(GenerationParameters(text="a", max_tokens=101), 256)
    for given, default, expected in ((100, 256, 100), (None, 256, 100), (None, 16, 16)):
        said = GenerationParameters(text="a", max_tokens=given)
        assert caller.apply_limits(said, default).max_tokens == expected


def test_requests_at_once() -> None:
    caller = Caller(entry(concurrent_requests=2))
    refused = pytest.raises(Overloaded, match="api key: requests: at most 2")
    with caller.admit(), caller.admit(), refused, caller.admit():
        pass
    with caller.admit():
        pass


def test_requests_a_minute() -> None:
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


def test_an_entry_that_changes_is_in_force_as_it_is_now(file: Path) -> None:
    clock = Clock()
    write(file, entry(max_tokens=5))
    access = Access(file, clock)
    assert access.caller(KEY).apply_limits(GenerationParameters(text="a"), 16).max_tokens == 5
    write(file, entry(key=OTHER, max_tokens=7))
    clock.now += 2
    assert access.caller(OTHER).apply_limits(GenerationParameters(text="a"), 16).max_tokens == 7
    with pytest.raises(Unauthenticated):
        access.caller(KEY)


def test_a_file_is_read_once_for_every_change(file: Path) -> None:
    clock = Clock()
    write(file, entry())
    access = Access(file, clock)
    write(file, entry(max_tokens=5))
    with capture_logs() as lines:
        for _ in range(3):
            clock.now += 2
            access.caller(KEY)
    assert [line["event"] for line in lines] == ["api keys read"]


def test_who_is_refused_is_told_what_is_left_to_wait() -> None:
    clock = Clock()
    caller = Caller(entry(requests_per_minute=3), clock)
    caller.count_requests(3)
    clock.now += 15  # three quarters of the next request
    with pytest.raises(Overloaded) as caught:
        caller.count_requests()
    assert caught.value.retry_after_s == 5


def test_a_tenant_can_be_written() -> None:
    with pytest.raises(ValidationError, match="must be at most 128 printable characters"):
        entry(tenant="a\nb")


def test_what_runs_costs_no_rate_again() -> None:
    caller = Caller(entry(requests_per_minute=1), Clock())
    caller.count_requests()
    for _ in range(5):
        with caller.admit():
            pass


def test_the_file_is_read_again_when_it_changes(file: Path) -> None:
    clock = Clock()
    write(file, entry(requests_per_minute=1), entry("bob", OTHER))
    access = Access(file, clock)
    access.caller(KEY).count_requests()
    write(file, entry(requests_per_minute=1))
    clock.now += 2
    with pytest.raises(Unauthenticated):
        access.caller(OTHER)
    with pytest.raises(Overloaded):
        access.caller(KEY).count_requests()  # an unchanged entry keeps its counts
    file.write_text("[[keys]]\nname = 7\n")
    clock.now += 2
    with capture_logs() as lines:
        assert access.caller(KEY).name == "alice"
        access.caller(KEY)
    assert [line["event"] for line in lines] == ["api keys not renewed"]
    file.unlink()
    clock.now += 2
    assert access.caller(KEY).name == "alice"


def test_a_file_that_is_just_being_written_shuts_nobody_out(file: Path) -> None:
    """A file that is written in place is empty for a moment."""
    clock = Clock()
    write(file, entry())
    access = Access(file, clock)
    file.write_text("")
    clock.now += 2
    assert access.caller(KEY).name == "alice"
    write(file, entry("bob", OTHER))
    clock.now += 2
    assert access.caller(OTHER).name == "bob"
    with pytest.raises(Unauthenticated):
        access.caller(KEY)


def test_the_rest_of_a_file_may_come_within_the_same_tick_of_the_clock(file: Path) -> None:
    """Otherwise a key written after the read would stay unknown for good."""
    clock = Clock()
    write(file, entry())
    access = Access(file, clock)
    written = file.stat().st_mtime_ns
    with file.open("a") as more:
        more.write(entry("bob", OTHER).toml())
    os.utime(file, ns=(written, written))
    clock.now += 2
    assert access.caller(OTHER).name == "bob"


def test_a_file_of_windows_is_read(file: Path) -> None:
    text = entry().toml().replace("\n", "\r\n")
    file.write_bytes(codecs.BOM_UTF8 + text.encode())
    assert Access(file).caller(KEY).name == "alice"


def test_where_a_file_is_no_toml_is_told(file: Path) -> None:
    file.write_text(entry().toml() + f'name = "{OTHER}"\n')
    with pytest.raises(StartupFailure, match=r"is not a TOML file \(at line 5, ") as caught:
        Access(file)
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
def test_a_file_that_is_wrong_stops_the_start_and_shows_no_key(
    file: Path, text: str, words: str
) -> None:
    file.write_text(text)
    with pytest.raises(StartupFailure, match="api_keys: ") as caught:
        Access(file)
    assert words in str(caught.value) and KEY not in str(caught.value)


def test_a_missing_file_stops_the_start(file: Path) -> None:
    with pytest.raises(StartupFailure, match="keys.toml cannot be read: No such file"):
        Access(file)


def test_the_header() -> None:
    assert bearer_token("Bearer dl-x") == bearer_token("bearer  dl-x ") == "dl-x"
    for header in (None, "", "Bearer", "Bearer ", "Basic dl-x", "dl-x"):
        assert bearer_token(header) is None


def test_the_command_makes_an_entry_and_a_key(file: Path) -> None:
    command = ["keys", "new", "bob", "--tenant", 'a "b" \\', "--concurrent-requests", "4"]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    file.write_text(made.stdout)
    (found,) = KeyFile.read(file).keys
    assert tomllib.loads(made.stdout)["keys"] == [found.model_dump(exclude_none=True)]
    assert (found.tenant, found.concurrent_requests, found.max_tokens) == ('a "b" \\', 4, None)
    key = made.stderr.split()[-1]
    assert Access(file).caller(key).name == "bob" and key not in made.stdout
    assert CliRunner().invoke(app, ["keys", "new", "b b"]).exit_code == 2


def test_several_at_once_are_admitted_or_none() -> None:
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
