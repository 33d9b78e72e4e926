"""Two verifiers and two drafters behind one orchestrator: clients notice no change of replicas."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draftloop.config import bundled_model
from protos import generation_pb2 as pb
from tests.e2e.client import Case, Client, first_difference, held_out_prompts
from tests.support.forked import ForkedRole
from tests.support.ports import quiet_port
from tests.support.sessions import sessions_of, wait_for_forwards
from tests.support.waiting import until

START_S = 240.0
CONCURRENCY = 8
DRAFT_TOKENS = 4
# The smaller model on both sides: the tests are about who answers, not about acceptance.
MODEL = str(bundled_model("drafter"))
SMALL = ["--model", MODEL, "--dtype", "float32", "--threads", "1"]


class Fleet:
    """Processes by name: v1, v2, d1, d2; and v3, which is listed but not started at first.

    All but v2 have time to drain.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: dict[str, ForkedRole] = {}
        self._ports = {name: quiet_port() for name in ("v1", "v2", "v3", "d1", "d2")}

    def begin(self, role: str, name: str, flags: list[str]) -> None:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        self.processes[name] = ForkedRole(role, flags, folder)
        self.processes[name].start()

    def wait(self, *names: str) -> None:
        for name in names:
            self.processes[name].wait_until_ready(time.monotonic() + START_S)

    def serve(self, *names: str) -> None:
        """Starts model services; returns when they are warm."""
        for name in names:
            role = {"v": "verifier", "d": "drafter"}[name[0]]
            grace = ["--grace-period-s", "0.01" if name == "v2" else "60"]
            self.begin(role, name, ["--listen", self.listed(name), *SMALL, *grace])
        self.wait(*names)

    def terminate(self, *names: str) -> None:
        """Sends SIGTERM; the processes must end by themselves with status 0."""
        for name in names:
            self.processes[name].kill(signal.SIGTERM)
        for name in names:
            process = self.processes[name].process
            assert process is not None and process.wait(60) == 0

    def listed(self, *names: str) -> str:
        return ",".join(f"127.0.0.1:{self._ports[name]}" for name in names)

    def log(self, name: str) -> str:
        return self.processes[name].log_file.read_text()

    def wait_for_sessions(self, *names: str) -> None:
        """Returns when each of these verifiers and drafters has a session."""
        at = [(self.processes[name].address, self.processes[name].role) for name in names]
        until(lambda: all(sessions_of(*each) for each in at), 60)

    def wait_for_forwards(self, drafter: str, count: int) -> None:
        """Returns when the drafter has run `count` more forward passes."""
        wait_for_forwards(self.processes[drafter].address, count, "drafter")

    def end(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
            process.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    with ExitStack() as stack:
        stack.callback(fleet.end)
        fleet.serve("v1", "v2", "d1", "d2")
        flags = ["--listen", "127.0.0.1:0", "--tokenizer", MODEL]
        flags += ["--verifiers", fleet.listed("v1", "v2", "v3")]
        flags += ["--drafters", fleet.listed("d1", "d2")]
        fleet.begin("orchestrator", "orchestrator", flags)
        fleet.wait("orchestrator")
        yield fleet


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[Client]:
    client = Client(fleet.processes["orchestrator"].address)
    yield client
    client.channel.close()


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    choices: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8}, {"top_p": 0.9})
    prompts = held_out_prompts(8, longest=48)
    return [
        Case(prompt, 128, {**choices[index % 3], "seed": index})
        for index, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def expected(client: Client, cases: list[Case]) -> list[list[int]]:
    return client.tokens(cases, "autoregressive", CONCURRENCY, ignore_eos=True)


@dataclass
class Load:
    """What repeated cases gave while something happened."""

    said: list[list[int]]  # the tokens of each case
    figures: list[pb.SpeculationFigures]  # of every answer


def under_load(client: Client, cases: list[Case], happens: Callable[[], None]) -> Load:
    """Repeats all cases until `happens` has returned; no request may fail.

    A model drafts in every round; otherwise a missing drafter would have no effect.
    """
    started, over = threading.Event(), threading.Event()
    figures: list[pb.SpeculationFigures] = []

    def ask(case: Case) -> tuple[int, ...]:
        started.set()
        # Without an end token: short sessions would all be over before a service is stopped.
        answer = client.once(case, "speculative", max_draft_tokens=DRAFT_TOKENS, ignore_eos=True)
        figures.append(answer.summary.speculation)
        return tuple(answer.token_ids)

    def repeat(case: Case) -> list[int]:
        outputs = set()
        while not over.is_set():
            outputs.add(ask(case))
        outputs.add(ask(case))
        assert len(outputs) == 1, "the same request had different outputs"
        return list(outputs.pop())

    with ThreadPoolExecutor(len(cases)) as pool:
        running = [pool.submit(repeat, case) for case in cases]
        try:
            assert started.wait(120)
            happens()
        finally:
            over.set()
        return Load([each.result() for each in running], figures)


def test_chat_stays_on_the_verifier_with_its_prefix(client: Client) -> None:
    """All turns go to the verifier that computed the earlier ones; by chance they rarely would."""
    text = tuple(range(100, 300))
    for turn in range(8):
        case = Case(text, 8, {"temperature": 0.8, "seed": turn})
        response = client.once(case, "speculative", ignore_eos=True)
        assert (response.summary.cached_prompt_tokens >= len(text) - 20) == (turn > 0)
        text = (*text, *response.token_ids, 7, 8, 9)


def test_sessions_are_balanced_and_draining_replicas_finish_them(
    fleet: Fleet, client: Client, cases: list[Case], expected: list[list[int]]
) -> None:
    """SIGTERM of a verifier and a drafter: both end with status 0, and no session is reopened."""

    def drain() -> None:
        fleet.wait_for_sessions("v1", "v2", "d1", "d2")
        fleet.terminate("v1", "d1")

    load = under_load(client, cases, drain)
    assert not first_difference(expected, load.said)
    assert any(each.draft_forwards for each in load.figures)
    assert "verifier session lost" not in fleet.log("orchestrator")


def test_new_replica_takes_over_from_killed_ones(
    fleet: Fleet, client: Client, cases: list[Case], expected: list[list[int]]
) -> None:
    """A third verifier joins. The second has no time to drain, and the last drafter is killed."""
    fleet.serve("v3")

    def replace() -> None:
        fleet.wait_for_sessions("v2", "v3", "d2")
        fleet.wait_for_forwards("d2", 8 * len(cases))  # more than the prompts take
        fleet.processes["d2"].kill()
        fleet.terminate("v2")

    load = under_load(client, cases, replace)
    assert not first_difference(expected, load.said)
    assert any(each.draft_forwards and each.fallback_rounds for each in load.figures)
    assert "verifier session lost" in fleet.log("orchestrator")
