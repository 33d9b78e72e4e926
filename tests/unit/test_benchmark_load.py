"""The load test of a user's server: requests, prompts and strategies."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import load
from benchmarks.load_settings import COLD, read_settings
from benchmarks.prompts import Prompt, completion, cut, prompts_in
from benchmarks.services import RunningServer
from benchmarks.systems import PLAIN
from benchmarks.workload import Case
from draftloop.errors import InvalidInput
from draftloop.phrase import PhraseScope
from draftloop.speculation import DRAFTER_STRATEGIES, OUROBOROS
from tests.support.model_info import deployment_info, model_info

SERVER = ("--server", "127.0.0.1:1")
CASE = Case(prompt=Prompt("a", "text", ()), tokens=4, temperature=0.8, seed=1)


def strategies(
    *words: str, drafts: tuple[str, ...] = DRAFTER_STRATEGIES, default: str
) -> list[str]:
    settings = read_settings([*SERVER, *words], "")
    info = deployment_info(model_info(strategies=drafts) if drafts else None, default)
    return load.strategies_of(settings, info)


def test_plain_decoding_and_server_default_strategy_come_first() -> None:
    named = ("--strategies", "opt_tree,fused cold")
    assert strategies(default="fused") == [PLAIN, "fused cold"]
    assert strategies(*named, default="fused") == [PLAIN, "fused cold", "opt_tree"]
    assert strategies(default=OUROBOROS) == [PLAIN, "ouroboros cold"]
    assert strategies(default=PLAIN) == [PLAIN]


def test_default_strategy_may_run_without_a_drafter() -> None:
    """Without a drafter `fused` drafts from phrases alone; a named strategy is not replaced."""
    assert strategies(default="fused", drafts=()) == [PLAIN, "fused cold"]
    with pytest.raises(InvalidInput, match="drafter does not serve this strategy; got 'opt_tree'"):
        strategies("--strategies", "lookahead,opt_tree", default="fused", drafts=())


def test_unfilled_pools_are_not_named_warm() -> None:
    assert "fused cold" in COLD and not [name for name in COLD if "warm" in name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SERVER, "--profile", "300M"), "--profile: not with --server"),
        ((*SERVER, "--quantization", "int8"), "--quantization: not with --server"),
        ((*SERVER, "--threads", "2"), "--threads: not with --server"),
        (("--prompts", "mine.txt"), "--prompts: only with --server"),
        ((*SERVER, "--strategies", "fast"), "must be of autoregressive, speculative"),
        ((*SERVER, "--requests", "0"), "whole numbers of at least 1"),
    ],
)
def test_invalid_options_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_settings(words, "")
    assert message in capsys.readouterr().err


def test_results_of_a_users_server_do_not_overwrite_the_record() -> None:
    assert read_settings(SERVER, "").out == Path("load")
    args = read_settings([], "")
    assert (args.out.name, args.out.parent.name, args.profile) == ("bench-load", "results", "300M")


def test_prompts_are_read_from_lines_or_json_lines(tmp_path: Path) -> None:
    lines, fields = tmp_path / "mine.txt", tmp_path / "mine.jsonl"
    lines.write_text("one\n\n  two\n")
    fields.write_text('{"prompt": "one\\ntwo", "id": 7}\n\n{"prompt": "th\u2028ree"}\n', "utf-8")
    assert [prompt.text for prompt in prompts_in(lines)] == ["one", "  two"]
    assert [prompt.text for prompt in prompts_in(fields)] == ["one\ntwo", "th\u2028ree"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.txt", b"\n  \n", "at least one prompt"),
        ("mine.jsonl", b"", "at least one prompt"),
        ("mine.jsonl", b'{"prompt": "a"}\n{"text": "b"}\n', "prompts, line 2: must be JSON"),
        ("mine.jsonl", b"[1]", "line 1"),
        ("mine.jsonl", b'{"prompt": ""}', "not empty"),
        ("mine.txt", b"\xff", "UTF-8"),
    ],
)
def test_file_without_prompts_is_refused(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        prompts_in(tmp_path / name)


def test_text_of_a_shortened_prompt_matches_its_tokens() -> None:
    """A server is sent the text, so it must be the prompt that a profile's services get."""
    full = completion(1).measured[0]
    short = cut(full, 5)
    assert len(short.token_ids) == 5
    assert short.text and full.text.startswith(short.text)


def test_shared_server_is_measured_with_private_phrases() -> None:
    """No tenant, which a key could forbid; no phrases or prefixes of others or for others."""
    plain = RunningServer._request_of(PLAIN, CASE)
    drafted = RunningServer._request_of("fused cold", CASE)
    assert [sent.speculation.strategy for sent in (plain, drafted)] == [PLAIN, "fused"]
    assert plain.speculation.phrases is PhraseScope.OFF
    assert drafted.speculation.phrases is PhraseScope.PRIVATE
    for sent in (plain, drafted):
        assert (sent.text, sent.token_ids, sent.tenant, sent.seed) == ("text", None, "", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--server", "127.0.0.1:1"), "no server at 127.0.0.1:1"),
        (("--server", "nowhere"), "must be host:port"),
        ((*SERVER, "--prompts", "no/such.txt"), "No such file"),
    ],
)
def test_unreachable_server_ends_the_load_test_with_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load.main([*words, "--out", str(tmp_path / "load")]) == 1
    assert message in " ".join(capsys.readouterr().out.split())
    assert not list(tmp_path.iterdir())
