"""`draftloop up` without its services: flags, configuration, the phrase log's warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from drafter_service.config import DrafterSettings
from draftloop.config import ServiceSettings
from draftloop.suggestion import flag_of
from orchestrator import cli_up
from orchestrator.cli import app
from orchestrator.cli_common import EXIT_FAILED
from orchestrator.config import OrchestratorSettings
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from tests.support.ports import quiet_port
from tests.support.redis_server import RedisServer
from verifier_service.config import VerifierSettings


def refusal_message(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["up", *arguments])
    assert result.exit_code == EXIT_FAILED and result.stdout == "", result.output
    [line] = result.stderr.splitlines()
    return line.removeprefix("draftloop: ")


def test_every_setting_has_a_flag() -> None:
    """docs/configuration.md promises a flag for every setting."""
    up = get_command(app).commands["up"]  # type: ignore[attr-defined]
    flags = {option for parameter in up.params for option in parameter.opts}
    assert flags == {flag_of(name) for name in ("config", *StackConfig.model_fields)}


def test_flags_override_the_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[StackConfig] = []
    monkeypatch.setattr(cli_up, "_run_stack", started.append)
    file = tmp_path / "up.toml"
    file.write_text('host = "127.0.0.2"\nhttp_port = 9\nverifier_flags = "--max-sessions 3"\n')
    flags = ["--http-port", "none", "--verifier-flags", "--max-sessions 4 --threads 1"]
    result = CliRunner().invoke(app, ["up", "--config", str(file), *flags])
    assert result.exit_code == 0, result.output
    [config] = started
    assert config.host == "127.0.0.2" and config.http_port is None
    assert config.verifier_flags == ("--max-sessions", "4", "--threads", "1")
    assert config.model_fields_set == {"host", "http_port", "verifier_flags"}


@pytest.mark.parametrize("text", ["none", ""])
def test_draft_none_starts_no_drafter(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """typer made a path of it, and the folder "none" was looked for."""
    started: list[StackConfig] = []
    monkeypatch.setattr(cli_up, "_run_stack", started.append)
    result = CliRunner().invoke(app, ["up", "--draft", text])
    assert result.exit_code == 0, result.output
    assert [config.draft for config in started] == [None]
    CliRunner().invoke(app, ["up", "--draft", "~/models/small"])
    assert started[-1].draft == Path.home() / "models" / "small"


def test_unknown_flags_are_refused_with_a_suggestion() -> None:
    assert refusal_message("--max-sessions", "32", "--port", "0") == (
        "--max-sessions: a flag of verifier and drafter, not of `draftloop up`: say "
        '--verifier-flags \'--max-sessions 32\', or verifier_flags = ["--max-sessions", "32"] '
        "in the file of --config"
    )
    assert 'drafter_flags = ["--draft-ahead", "on"]' in refusal_message("--draft-ahead", "on")
    assert 'orchestrator_flags = ["--max-requests=3"]' in refusal_message("--max-requests=3")
    assert (
        refusal_message("--tarqet", "x")
        == "--tarqet: unknown flag; the nearest that is known is --target"
    )
    assert refusal_message("--foo") == "--foo: unknown flag"
    assert refusal_message("models") == "models: `draftloop up` takes flags alone"


def test_all_role_settings_are_known_to_up() -> None:
    settings: dict[str, type[ServiceSettings]] = {
        "verifier": VerifierSettings, "drafter": DrafterSettings,
        "orchestrator": OrchestratorSettings,
    }  # fmt: skip
    own = set(StackConfig.model_fields)
    for role, kind in settings.items():
        assert set(kind.model_fields) - own == set(cli_up.ROLE_SETTINGS[role]) - own


def test_stopping_up_reports_that_the_logs_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def interrupted(stack: Stack) -> None:
        (stack.folder / "verifier.log").touch()
        folders.append(stack.folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "_start", interrupted)
    result = CliRunner().invoke(app, ["up"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "stopped; the logs are removed"
    assert len(folders) == 1 and not folders[0].exists()


def test_unreachable_phrase_log_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreachable log is reported. Earlier, the output said only that everything was ready."""
    cli_up._warn_if_phrase_log_unreachable("memory://")
    with RedisServer(tmp_path) as server:
        cli_up._warn_if_phrase_log_unreachable(server.url)
    assert capsys.readouterr().out == ""
    cli_up._warn_if_phrase_log_unreachable(f"redis://user:secret@127.0.0.1:{quiet_port()}")
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("the phrase log is not reachable, generation goes on without it: ")
    assert "secret" not in line
