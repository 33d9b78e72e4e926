"""transformers as a measured system: the client of `transformers_worker`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from benchmarks.outcome import Outcome
from benchmarks.workload import Case
from draftloop.config import REPOSITORY
from draftloop.errors import StartupFailure
from draftloop.openmp import PASSIVE_WAIT
from orchestrator.stack_config import StackConfig

SHORT_SPIN = {"GOMP_SPINCOUNT": "2000"}


class Transformers:
    """A worker process and its pipes."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process = process
        self._log = log

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends one line and reads one. Raises StartupFailure with the worker's last log line."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise StartupFailure(f"transformers: the worker ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, method: str, case: Case) -> Outcome:
        """Continues the prompt with transformers' `generate`."""
        answer = self.ask(
            {
                "method": method,
                "prompt": case.prompt.token_ids,
                "tokens": case.tokens,
                "temperature": case.temperature,
                "seed": case.seed,
            }
        )
        steps = [(float(seconds), int(count)) for seconds, count in answer["steps"]]
        return Outcome.from_steps(tuple(answer["token_ids"]), steps)

    def _last_words(self) -> str:
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["no output"])[-1]


@contextlib.contextmanager
def loaded(config: StackConfig, threads: int, draft_inflate: str = "") -> Iterator[Transformers]:
    """A worker with the same models, element type and cost inflation as the stack.

    `draft_inflate`: cost inflation of the draft model, which the stack has in its role's flags.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.transformers_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=REPOSITORY,
            env=_environment(),
        )
        try:
            worker = Transformers(process, log)
            worker.ask(
                {
                    "target": str(config.target),
                    "draft": str(config.draft),
                    "dtype": config.dtype,
                    "inflate": config.inflate,
                    "draft_inflate": draft_inflate,
                    "device": config.device,
                    "threads": threads,
                }
            )
            yield worker
        finally:
            process.kill()
            process.communicate()


def _environment() -> dict[str, str]:
    """This process's environment, with a different way for idle threads to wait.

    For a process that has the machine to itself during its turn, it is best if threads spin for
    some microseconds between two parallel regions. Sleeping at once costs a little. Spinning for
    milliseconds, the default, costs very much as soon as anything else runs.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in PASSIVE_WAIT}
    return {**inherited, **SHORT_SPIN}
