"""`python -m draftloop.grammars.trial`: tries grammars in a process where they cannot do harm.

Compiling a grammar in llguidance may take minutes, gigabytes, or more stack than there is, which
ends the process, and its text does not tell which. So before a service uses a grammar, the grammar
is tried in its own process, within limits. Requests and answers are lines of JSON: first a `Model`,
then one grammar after another. The answer is what is wrong with it, or null.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.matching import Vocabulary
from draftloop.grammars.text import refusal

MB = 1 << 20
MAX_STACK = 4 * MB  # less than threads of services have: what passes here is safe there
MAX_MEMORY = 48 * MB  # services keep several grammars in memory
MAX_ADDRESS_SPACE = 192 * MB  # while the grammar is compiled
MAX_CPU_S = 3
MAX_WALL_S = 30.0  # wall time, for a machine that is busy with other work
TERMINATION_SIGNALS = (signal.SIGTERM,)
TOO_LARGE = "it is too large, or too deep"
TOO_LONG = f"it takes more than {MAX_CPU_S} seconds to make"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What grammars are followed with; `folder` holds the tokenizer."""

    folder: str
    vocabulary_size: int
    stop_token_ids: tuple[int, ...]


def main() -> None:
    """Answers requests until standard input ends or the process is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    model = Model(**json.loads(sys.stdin.readline()))
    try:
        vocabulary = Vocabulary(Path(model.folder), model.vocabulary_size, model.stop_token_ids)
    except ValueError as error:
        _write_answer(str(error))
        return
    _write_answer(None)
    for line in sys.stdin:
        _write_answer(_try_in_child(Grammar(**json.loads(line)), vocabulary))


def _write_answer(answer: str | None) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _try_in_child(grammar: Grammar, vocabulary: Vocabulary) -> str | None:
    """What is wrong with the grammar; None if it can be followed."""
    reading, writing = os.pipe()
    signal.pthread_sigmask(
        signal.SIG_BLOCK, TERMINATION_SIGNALS
    )  # exiting here would leave the child
    child = os.fork()
    if not child:
        _run_child(writing, grammar, vocabulary)
    os.close(writing)
    answer = b""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
        answer = _read_answer(reading)
    finally:  # in a container, nothing else would reap the child
        if not answer:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if answer:
        found: str | None = json.loads(answer)
        return found
    timed_out = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return refusal(grammar, TOO_LONG if timed_out else TOO_LARGE).description


def _read_answer(reading: int) -> bytes:
    """The child's answer; empty if it ended without one or took too long."""
    with os.fdopen(reading, "rb") as answer:
        in_time, _, _ = select.select([answer], [], [], MAX_WALL_S)
        return answer.read() if in_time else b""


def _run_child(writing: int, grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Tries the grammar in the child process, writes the answer, and ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
    with contextlib.suppress(BaseException):
        _limit_resources()
        before = _peak_memory()
        found = _find_problem(grammar, vocabulary)
        if found is None and _peak_memory() - before > MAX_MEMORY:
            found = refusal(grammar, TOO_LARGE).description
        os.write(writing, json.dumps(found).encode())
    os._exit(0)


def _limit_resources() -> None:
    limits = {resource.RLIMIT_STACK: MAX_STACK, resource.RLIMIT_CORE: 0}
    with contextlib.suppress(OSError):  # without /proc, only time and stack are bounded
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + MAX_ADDRESS_SPACE
    limits[resource.RLIMIT_CPU] = MAX_CPU_S + 1  # the soft limit is one second lower
    for kind, limit in limits.items():
        _, hard_limit = resource.getrlimit(kind)
        limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        soft_limit = limit - 1 if kind == resource.RLIMIT_CPU else limit
        resource.setrlimit(kind, (soft_limit, limit))


def _peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _find_problem(grammar: Grammar, vocabulary: Vocabulary) -> str | None:
    try:
        vocabulary.matcher(grammar)
    except InvalidInput as error:
        return error.description
    return None


if __name__ == "__main__":
    main()
