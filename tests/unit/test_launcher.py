"""`draftloop up`: the flags of the roles, ports, and checks before models are loaded."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from drafter_service.config import DrafterSettings
from draftloop import bundled
from draftloop.config import bundled_model
from draftloop.errors import StartupFailure
from draftloop.model_info import require_model_folder, vocabulary_fingerprint
from orchestrator.launcher import Stack, interruptible
from orchestrator.ports import choose_ports, port_problems
from orchestrator.role_process import PYTHON, RoleProcess
from orchestrator.stack_config import StackConfig
from tests.support.ports import quiet_port


class UnstartedRole(RoleProcess):
    """A role that is not started; only its flags are examined."""

    def start(self) -> None:
        pass


@pytest.mark.parametrize(("draft", "threads"), [("drafter", ["1"]), ("drafter-large", [])])
def test_small_draft_model_gets_one_thread(draft: str, threads: list[str]) -> None:
    stack = Stack(StackConfig(draft=bundled_model(draft), device="cpu"))
    flags = stack._drafter_flags()
    stack.stop()
    thread_flags = [value for name, value in pairwise(flags) if name == "--threads"]
    assert thread_flags == threads


@pytest.mark.parametrize(
    ("draft_device", "device", "threads"), [(None, "cuda:1", []), ("cpu", "cpu", ["1"])]
)
def test_draft_model_may_have_its_own_device(
    draft_device: str | None, device: str, threads: list[str]
) -> None:
    """A small draft model gets one thread on a CPU, whatever the target's device."""
    stack = Stack(StackConfig(device="cuda:1", draft_device=draft_device))
    drafter_flags = list(pairwise(stack._drafter_flags()))
    targets = list(pairwise(stack._verifier_flags()))
    stack.stop()
    assert [value for name, value in drafter_flags if name == "--device"] == [device]
    assert [value for name, value in drafter_flags if name == "--threads"] == threads
    assert ("--device", "cuda:1") in targets


def test_smaller_draft_models_are_passed_to_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller models come from the flag or the drafter's variable, and need a first model."""

    def smaller_models_flags(config: StackConfig) -> list[str]:
        stack = Stack(config)
        flags = pairwise(stack._drafter_flags())
        stack.stop()
        return [value for name, value in flags if name == "--smaller-models"]

    assert smaller_models_flags(StackConfig(smaller_models="a,b")) == ["a,b"]
    monkeypatch.setenv("DRAFTLOOP_DRAFTER_SMALLER_MODELS", "c")
    assert smaller_models_flags(StackConfig(smaller_models="a")) == ["a"]
    assert smaller_models_flags(StackConfig()) == []
    with pytest.raises(StartupFailure, match='smaller_models: a without .*draft is "none"'):
        StackConfig.read(None, draft="none", smaller_models="a")


def test_config_file_expresses_unset_values(tmp_path: Path) -> None:
    # TOML has no null; "none" and an empty text stand for it.
    file = tmp_path / "up.toml"
    file.write_text('draft = "none"\nhttp_port = ""\n')
    config = StackConfig.read(file)
    assert config.draft is None and config.http_port is None
    file.write_text("http_port = false\n")
    with pytest.raises(StartupFailure, match="http_port"):
        StackConfig.read(file)
    file.write_text('tarqet = "x"\nfoo = 3\n')
    with pytest.raises(StartupFailure) as caught:
        StackConfig.read(file)
    assert str(caught.value) == (
        "tarqet: unknown key; the nearest that is known is target\nfoo: unknown key"
    )
    file.write_bytes(b"draft = '\xff'\n")
    with pytest.raises(StartupFailure, match="config: .*cannot be read"):
        StackConfig.read(file)


def test_missing_bundled_models_are_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error used to say that folders of the package hold no config.json."""
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)

    def refusal(**settings: Any) -> str:
        free = {"port": 0, "http_port": None, "verifier_port": 0, "drafter_port": 0}
        stack = Stack(StackConfig(**{**free, **settings}))
        with pytest.raises(StartupFailure) as caught, stack:
            pass
        return str(caught.value)

    no_models = refusal(target=bundled_model("verifier"), draft=bundled_model("drafter"))
    assert no_models == (
        "target, draft: the bundled models are only in a clone of the repository: run it there, or "
        "give the folder of a Hugging Face model (--target, --draft)"
    )
    own_target = tmp_path / "own" / "model"
    one, hint = refusal(target=own_target, draft=bundled_model("drafter")).split("\n")
    assert one.startswith("draft: the bundled models are only") and one.endswith("(--draft)")
    assert hint.startswith(f"target: {own_target} holds no config.json; give the folder")
    with pytest.raises(StartupFailure, match="^model: the bundled models are only in a clone"):
        require_model_folder(bundled_model("verifier"))
    bundled_model("drafter").mkdir()
    assert refusal(target=own_target).startswith("target: ")
    assert "draft: " + str(bundled_model("drafter")) in refusal(draft=bundled_model("drafter"))


def test_ports_are_checked_before_models_are_loaded() -> None:
    def refusal(**settings: Any) -> str:
        stack = Stack(StackConfig(**{"port": 0, "http_port": 0, **settings}))
        with pytest.raises(StartupFailure) as caught, stack:
            pass
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "is in use" in refusal(port=port, verifier_port=0, drafter_port=0)
    free = {"verifier_port": 0, "drafter_port": 0}
    port = quiet_port()
    assert "is that of http_port, too" in refusal(port=port, http_port=port, **free)
    assert "cannot be listened on" in refusal(host="10.255.255.1", port=port)


def test_all_problems_are_reported_at_once_requested_ones_first(tmp_path: Path) -> None:
    # All problems are reported together, first those of settings that the user gave.
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        default, requested = (server.getsockname()[1] for server in servers)

        class DefaultPortConfig(StackConfig):
            port: int = default  # the user did not ask for it

        same_port = dict.fromkeys(("drafter_port", "verifier_port"), quiet_port())
        config = DefaultPortConfig(target=tmp_path / "no", http_port=requested, **same_port)
        with pytest.raises(StartupFailure) as caught:
            stack.enter_context(Stack(config))
    target, verifier_port, http_port, port = str(caught.value).splitlines()
    assert target.startswith(f"target: {tmp_path / 'no'} holds no config.json")
    assert verifier_port.startswith(
        f"verifier_port: 127.0.0.1:{same_port['verifier_port']} is that of drafter_port, too"
    )
    assert http_port.startswith(f"http_port: 127.0.0.1:{requested} is in use")
    assert port.startswith(f"port: 127.0.0.1:{default} is in use") and port.endswith("(--port)")


def test_default_internal_ports_avoid_taken_ones() -> None:
    """A second deployment used to be refused because of internal ports that nobody had set."""
    host = "127.0.0.1"
    with socket.create_server((host, 0)) as taken:
        port, public = taken.getsockname()[1], quiet_port()
        ports = {"verifier_port": port, "port": public, "drafter_port": public}
        chosen = choose_ports(host, ports, set())
        assert chosen == {"verifier_port": 0, "port": public, "drafter_port": 0}
        assert not list(port_problems(host, chosen, set()))
        named = {"verifier_port", "drafter_port"}
        assert choose_ports(host, ports, named) == ports
        [one, second] = port_problems(host, ports, named)
    assert one == (
        f"verifier_port: {host}:{port} is in use; stop what listens there or choose another port "
        "(--verifier-port)"
    )
    assert second == f"drafter_port: {host}:{public} is that of port, too (--drafter-port)"


def test_vocabulary_mismatch_is_found_before_models_are_loaded(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(bundled_model("drafter"), draft)
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    free = {"port": 0, "http_port": 0, "verifier_port": 0, "drafter_port": 0}
    stack = Stack(StackConfig(draft=draft, **free))
    with pytest.raises(StartupFailure) as caught, stack:
        pass
    assert not stack.processes
    fingerprints = [vocabulary_fingerprint(folder) for folder in (draft, bundled_model("verifier"))]
    assert str(caught.value).startswith(f"draft: {draft} has another vocabulary than ")
    assert "({}, not {})".format(*fingerprints) in str(caught.value)


@pytest.mark.parametrize("name", ["DRAFTLOOP_DRAFTER_PHRASES_URL", "DRAFTLOOP_PHRASES_URL"])
def test_phrases_url_of_the_environment_is_not_overridden(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "redis://there")

    def passed_url(config: StackConfig) -> str:
        stack = Stack(config)
        stack.role_process = UnstartedRole
        stack._add("drafter", [])
        stack.stop()
        with pytest.MonkeyPatch.context() as started:
            for variable, value in stack.processes["drafter"].environment.items():
                started.setenv(variable, value)
            return DrafterSettings.from_command_line([]).phrases_url

    assert passed_url(StackConfig()) == "redis://there"
    assert passed_url(StackConfig(phrases_url="redis://here")) == "redis://here"


@pytest.fixture
def flags_of_roles() -> Iterator[Callable[..., dict[str, dict[str, str]]]]:
    """Returns a function that gives the flags of every role for these settings."""
    stacks: list[Stack] = []

    def flags_of(**settings: Any) -> dict[str, dict[str, str]]:
        stack = Stack(StackConfig.read(None, **settings))
        stacks.append(stack)
        flags_by_role = {
            "verifier": stack._verifier_flags(), "drafter": stack._drafter_flags(),
            "orchestrator": stack._orchestrator_flags(),
        }  # fmt: skip
        return {role: dict(pairwise(flags)) for role, flags in flags_by_role.items()}

    yield flags_of
    for stack in stacks:
        stack.stop()


def test_defaults_do_not_override_a_roles_environment(
    monkeypatch: pytest.MonkeyPatch, flags_of_roles: Callable[..., dict[str, dict[str, str]]]
) -> None:
    model = str(bundled_model("drafter-large"))
    for role, name, value in (
        ("VERIFIER", "DTYPE", "float32"), ("DRAFTER", "THREADS", "2"),
        ("DRAFTER", "MODEL", model), ("ORCHESTRATOR", "HTTP_LISTEN", "127.0.0.1:7"),
        ("ORCHESTRATOR", "DEFAULT_STRATEGY", "speculative"),
    ):  # fmt: skip
        monkeypatch.setenv(f"DRAFTLOOP_{role}_{name}", value)
    flags = flags_of_roles()
    assert "--dtype" not in flags["verifier"] and flags["drafter"]["--dtype"] == "bfloat16"
    assert flags["drafter"]["--model"] == model and "--threads" not in flags["drafter"]
    assert not {"--http-listen", "--default-strategy"} & flags["orchestrator"].keys()
    requested = flags_of_roles(dtype="bfloat16", http_port=9, default_strategy="fused")
    assert requested["verifier"]["--dtype"] == "bfloat16"
    assert requested["orchestrator"]["--http-listen"] == "127.0.0.1:9"
    assert requested["orchestrator"]["--default-strategy"] == "fused"


def test_requested_device_overrides_the_drafters_environment(
    monkeypatch: pytest.MonkeyPatch, flags_of_roles: Callable[..., dict[str, dict[str, str]]]
) -> None:
    """--draft-device used to be ignored; it has no effect on the verifier's device."""
    for role in ("VERIFIER", "DRAFTER"):
        monkeypatch.setenv(f"DRAFTLOOP_{role}_DEVICE", "cuda:1")
    flags = flags_of_roles(draft_device="cpu")
    assert flags["drafter"]["--device"] == "cpu" and "--device" not in flags["verifier"]
    assert "--device" not in flags_of_roles()["drafter"]
    for role in ("verifier", "drafter"):
        assert flags_of_roles(device="cuda")[role]["--device"] == "cuda"


def test_role_listens_where_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a requested host or port overrides the environment; defaults used to do so, too."""

    def listen_flags(**settings: Any) -> dict[str, str | None]:
        stack = Stack(StackConfig.read(None, **settings))
        stack.role_process = UnstartedRole
        assert not list(stack._taken_ports())
        for role in ("verifier", "drafter", "orchestrator"):
            stack._add(role, [])
        stack.stop()
        flags = {name: process.flags for name, process in stack.processes.items()}
        return {name: dict(pairwise(pairs)).get("--listen") for name, pairs in flags.items()}

    ports = {"drafter_port": 0, "port": 0, "http_port": 0}
    monkeypatch.setenv("DRAFTLOOP_VERIFIER_LISTEN", "127.0.0.2:7")
    free = "127.0.0.1:0"
    assert listen_flags(**ports) == {"verifier": None, "drafter": free, "orchestrator": free}
    assert listen_flags(**ports, verifier_port=0)["verifier"] == free
    assert str(listen_flags(**ports, host="localhost")["verifier"]).startswith("localhost:")


def test_target_from_the_environment_sets_the_tokenizer(
    monkeypatch: pytest.MonkeyPatch, flags_of_roles: Callable[..., dict[str, dict[str, str]]]
) -> None:
    monkeypatch.setenv("DRAFTLOOP_VERIFIER_MODEL", "/there")
    flags = flags_of_roles()
    assert flags["verifier"]["--model"] == flags["orchestrator"]["--tokenizer"] == "/there"
    assert flags_of_roles(target=Path("/here"))["verifier"]["--model"] == "/here"


def test_orchestrator_settings_are_checked_before_models_are_loaded() -> None:
    free = {"port": 0, "http_port": 0, "verifier_port": 0, "drafter_port": 0}
    for wrong, name in (
        ({"default_strategy": "foo"}, "default_strategy: must be one of"),
        ({"orchestrator_flags": ("--max-requests", "0")}, "max_requests"),
        ({"orchestrator_flags": ("--max-request", "2")}, "--max-request: .* is --max-requests"),
        ({"phrases_url": "reddis://there"}, "phrases_url: must start with one of memory://"),
    ):
        stack = Stack(StackConfig(**free, **wrong))
        with pytest.raises(StartupFailure, match=name), stack:
            pass
        assert not stack.processes and not stack.folder.exists()


def test_flags_in_a_config_file_are_split_as_in_a_shell(tmp_path: Path) -> None:
    file = tmp_path / "up.toml"
    file.write_text('verifier_flags = "--max-sessions 3"\ntarget = "~/models/large"\n')
    config = StackConfig.read(file)
    assert config.verifier_flags == ("--max-sessions", "3")
    assert config.target == Path.home() / "models/large"


def test_logs_are_kept_after_a_failure(tmp_path: Path) -> None:
    stack = Stack(StackConfig())

    def start() -> None:
        for name in ("verifier.log", "verifier.address", "start.lock"):
            stack.folder.joinpath(name).touch()

    stack._start = start  # type: ignore[method-assign]
    with pytest.raises(StartupFailure), stack:
        raise StartupFailure("died")
    assert [file.name for file in stack.folder.iterdir()] == ["verifier.log"]
    with stack, pytest.raises(KeyboardInterrupt):
        raise KeyboardInterrupt
    assert not stack.folder.exists()


def test_ignored_signals_stay_ignored() -> None:
    """`nohup` lets a process outlive its terminal."""
    previous_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, previous_handler)


def test_files_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    # Roles import nothing from the current directory.
    (tmp_path / "structlog.py").write_text("raise SystemExit('not ours')")
    command = [*PYTHON, "orchestrator", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "--verifiers" in done.stdout, done.stderr


def test_role_has_its_own_grace_period(tmp_path: Path) -> None:
    role = RoleProcess("verifier", [], tmp_path)
    assert role._grace_period_s == 10.0
    role.flags = ["--grace-period-s", "60"]
    assert role._grace_period_s == 60.0
    role.flags = ["--grace-period-s=30", "--grace-period-s", "60", "--grace-period-s=90"]
    assert role._grace_period_s == 90.0  # as the role itself parses them
    role.flags, role.environment["DRAFTLOOP_VERIFIER_GRACE_PERIOD_S"] = [], "3"
    assert role._grace_period_s == 3.0


def test_compiled_functions_work_when_the_cache_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiled code runs even if it cannot be written to the cache.
    (tmp_path / "loops.py").write_text(
        "from draftloop.runtime.compiling import compiled\n"
        "@compiled\n"
        "def twice(n: int) -> int:\n"
        "    return 2 * n\n"
    )
    (tmp_path / "cache").mkdir()
    program = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"  # writes fail, as on a full disk
        "import loops\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "assert loops.twice(21) == 42\n"
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
