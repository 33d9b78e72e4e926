"""Settings that are files or folders: an empty one is refused, and `~` is the home folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafter_service.config import DrafterSettings
from draftloop.config import at_home
from draftloop.errors import StartupFailure
from orchestrator.config import OrchestratorSettings


@pytest.mark.parametrize("name", ["API_KEYS", "TOKENIZER", "ADDRESS_FILE", "SERVICES_TLS_CA"])
def test_an_empty_path_is_not_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A variable that was passed on though unset. The key file was then said to be a directory."""
    monkeypatch.setenv(f"DRAFTLOOP_ORCHESTRATOR_{name}", "")
    with pytest.raises(StartupFailure, match=f"^{name.lower()}: must not be empty"):
        OrchestratorSettings.from_command_line([])


def test_the_home_folder_is_known_where_no_shell_has_put_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a file of variables, or in the flags of a configuration file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRAFTLOOP_DRAFTER_MODEL", "~/small")
    settings = DrafterSettings.from_command_line(["--smaller-models", "~/tiny,/models/least"])
    assert settings.model == tmp_path / "small"
    assert settings.smaller_model_folders == [tmp_path / "tiny", Path("/models/least")]
    keys = OrchestratorSettings.from_command_line(["--api-keys", "~/keys.toml"]).api_keys
    assert keys == tmp_path / "keys.toml"


def test_the_home_of_nobody_is_left_as_it_is() -> None:
    assert at_home("~nobody-of-this-name/models") == Path("~nobody-of-this-name/models")
