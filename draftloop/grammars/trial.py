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
MOST_STACK = 4 * MB  # less than threads of services have: what passes here is safe there
MOST_MEMORY = 48 * MB  # services keep several grammars in memory
MOST_ADDRESSES = 192 * MB  # while the grammar is compiled
MOST_CPU_S = 3
MOST_S = 30.0  # wall time, for a machine that is busy with other work
TOLD_TO_END = (signal.SIGTERM,)
TOO_LARGE = "it is too large, or too deep"
TOO_LONG = f"it takes more than {MOST_CPU_S} seconds to make"


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
        known = Vocabulary(Path(model.folder), model.vocabulary_size, model.stop_token_ids)
    except ValueError as error:
        _say(str(error))
        return
    _say(None)
    for line in sys.stdin:
        _say(_tried(Grammar(**json.loads(line)), known))


def _say(answer: str | None) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _tried(grammar: Grammar, known: Vocabulary) -> str | None:
    """What is wrong with the grammar; None if it can be followed."""
    reading, writing = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD_TO_END)  # exiting here would leave the child
    child = os.fork()
    if not child:
        _answer(writing, grammar, known)
    os.close(writing)
    said = b""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD_TO_END)
        said = _heard(reading)
    finally:  # in a container, nothing else would reap the child
        if not said:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said:
        found: str | None = json.loads(said)
        return found
    late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return refusal(grammar, TOO_LONG if late else TOO_LARGE).description


def _heard(reading: int) -> bytes:
    """The child's answer; empty if it ended without one or took too long."""
    with os.fdopen(reading, "rb") as answer:
        in_time, _, _ = select.select([answer], [], [], MOST_S)
        return answer.read() if in_time else b""


def _answer(writing: int, grammar: Grammar, known: Vocabulary) -> None:
    """Tries the grammar in the child process, writes the answer, and ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD_TO_END)
    with contextlib.suppress(BaseException):
        _limit()
        before = _most_memory()
        found = _wrong(grammar, known)
        if found is None and _most_memory() - before > MOST_MEMORY:
            found = refusal(grammar, TOO_LARGE).description
        os.write(writing, json.dumps(found).encode())
    os._exit(0)


def _limit() -> None:
    limits = {resource.RLIMIT_STACK: MOST_STACK, resource.RLIMIT_CORE: 0}
    with contextlib.suppress(OSError):  # without /proc, only time and stack are bounded
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + MOST_ADDRESSES
    limits[resource.RLIMIT_CPU] = MOST_CPU_S + 1  # the soft limit is one second lower
    for kind, most in limits.items():
        _, known = resource.getrlimit(kind)
        most = most if known == resource.RLIM_INFINITY else min(most, known)
        early = most - 1 if kind == resource.RLIMIT_CPU else most
        resource.setrlimit(kind, (early, most))


def _most_memory() -> int:
    """Peak memory of this process, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _wrong(grammar: Grammar, known: Vocabulary) -> str | None:
    try:
        known.matcher(grammar)
    except InvalidInput as error:
        return error.description
    return None


if __name__ == "__main__":
    main()
