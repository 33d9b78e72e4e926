"""Grammars are tried in a separate process, which is all that a harmful one can end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput, Overloaded, Unavailable
from draftloop.grammar import MAX_LETTERS, Grammar
from draftloop.grammars.trial import TOO_LARGE, TOO_LONG
from orchestrator import grammar_trials
from orchestrator.grammar_trials import GrammarTrials
from tests.support.model_info import model_info
from tests.support.waiting import eventually

MODEL = model_info(stop_token_ids=(0,))
SOUND = Grammar("regex", "[0-9]+")
LINKS = 4000  # a chain of rules, which is walked by recursion


@pytest.fixture
async def trials() -> AsyncIterator[GrammarTrials]:
    created = GrammarTrials(bundled_model("verifier"), max_waiting=64)
    yield created
    await created.close()


def chain_of_rules() -> str:
    rules = "\n".join(f"r{number}: r{number + 1}" for number in range(LINKS))
    return f'start: r0\n{rules}\nr{LINKS}: "a"'


def chain_of_schemas() -> str:
    links = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(1100)}
    return json.dumps({"$defs": {**links, "d1100": {}}, "$ref": "#/$defs/d0"})


def patterns_at_once() -> str:
    letters = (chr(ord("a") + number) for number in range(14))
    patterns = [{"type": "string", "pattern": f".*{letter}{{1}}.*b"} for letter in letters]
    return json.dumps({"allOf": patterns})


def dots_between() -> str:
    return "start: A\nA: /x/ & " + " & ".join(f"/.*a.{{{number}}}.*/" for number in range(1, 200))


@pytest.mark.parametrize(
    "bomb",
    [
        Grammar("grammar", chain_of_rules()),
        Grammar("json_schema", chain_of_schemas()),
        Grammar("json_schema", patterns_at_once()),
        Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}'),
        Grammar("grammar", dots_between()),
    ],
)
async def test_harmful_grammars_are_refused_and_the_process_survives(
    trials: GrammarTrials, bomb: Grammar
) -> None:
    """Exhausting stack, time or memory; the same process then tries the next grammar."""
    await trials.require(SOUND, MODEL)
    with pytest.raises(InvalidInput, match=f"grammar.{bomb.format}: must be a grammar that can be"):
        await trials.require(bomb, MODEL)
    (before,) = trials._idle
    await trials.require(Grammar("regex", "[a-z]+"), MODEL)
    (after,) = trials._idle
    assert before is after


async def test_grammar_that_took_too_long_is_not_tried_again(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}')
    with pytest.raises(InvalidInput, match=f"{TOO_LONG}|{TOO_LARGE}") as first:
        await trials.require(slow, MODEL)
    monkeypatch.setattr(trials, "_try_grammar", None)
    with pytest.raises(InvalidInput) as second:
        await trials.require(slow, MODEL)
    assert str(first.value) == str(second.value)


def running_processes() -> list[tuple[int, int]]:
    """Every process with its parent, zombies included."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended in the meantime
            fields = file.read_text().rpartition(")")[2].split()
            processes.append((int(file.parent.name), int(fields[1])))
    return processes


def children_of(process: int) -> set[int]:
    return {child for child, parent in running_processes() if parent == process}


async def test_cancelled_trial_ends_its_process(trials: GrammarTrials) -> None:
    """Other grammars are tried by a new process, also in the meantime."""
    await trials.require(SOUND, MODEL)
    (process,) = trials._idle
    slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}')
    request = asyncio.create_task(trials.require(slow, MODEL))
    while not (children := children_of(process._process.pid)):
        await asyncio.sleep(0.01)
    await trials.require(Grammar("regex", "b"), MODEL)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert process._process.poll() is not None
    assert not children & {child for child, _ in running_processes()}
    await trials.require(Grammar("regex", "c"), MODEL)
    assert process not in trials._idle


@pytest.mark.parametrize("while_idle", [True, False])
async def test_dead_trial_process_is_replaced(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch, while_idle: bool
) -> None:
    """One that was killed while it was idle costs no request anything."""
    await trials.require(SOUND, MODEL)
    (process,) = trials._idle
    process._process.kill()
    process._process.wait()
    if not while_idle:  # it dies just after it was found running
        monkeypatch.setattr(type(process), "is_running", True)
        with pytest.raises(Unavailable, match="no grammar can be tried now"):
            await trials.require(Grammar("regex", "d"), MODEL)
    await trials.require(Grammar("regex", "d"), MODEL)


async def test_concurrent_trials_keep_bounded_results(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "MAX_REMEMBERED", 2)
    grammars = [Grammar("regex", f"[a-{letter}]+") for letter in "bcdefg"]
    await asyncio.gather(*(trials.require(grammar, MODEL) for grammar in grammars * 2))
    assert len(trials._results) == 2 and len(trials._idle) <= grammar_trials.PROCESSES


class HeldTrials:
    """Trials that wait until they are released; counts them."""

    def __init__(self, trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = 0
        self.release = asyncio.Event()
        self._try_grammar = trials._try_grammar
        monkeypatch.setattr(trials, "_try_grammar", self.try_grammar)

    async def try_grammar(self, *args: Any) -> str | None:
        self.started += 1
        await self.release.wait()
        return await self._try_grammar(*args)


async def test_concurrent_requests_share_one_trial(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request used to try the grammar again; other grammars need not wait for it."""
    held = HeldTrials(trials, monkeypatch)
    requests = [asyncio.create_task(trials.require(SOUND, MODEL)) for _ in range(50)]
    other_request = asyncio.create_task(trials.require(Grammar("regex", "b"), MODEL))
    await eventually(lambda: held.started == 2)
    held.release.set()
    await asyncio.gather(*requests, other_request)
    assert held.started == 2 and not trials._locks


async def test_next_request_takes_over_a_cancelled_trial(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If the request that runs a common trial is cancelled, one of those that wait runs it.
    held = HeldTrials(trials, monkeypatch)
    first, *other_requests = (asyncio.create_task(trials.require(SOUND, MODEL)) for _ in range(3))
    await eventually(lambda: held.started == 1)
    first.cancel()
    await eventually(lambda: held.started == 2)
    held.release.set()
    await asyncio.gather(*other_requests)
    assert first.cancelled() and held.started == 2


async def test_number_of_waiting_requests_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests are not admitted yet, and each may take seconds."""
    trials = GrammarTrials(bundled_model("verifier"), max_waiting=3)
    held = HeldTrials(trials, monkeypatch)
    waiting = [
        asyncio.create_task(trials.require(Grammar("regex", letter), MODEL)) for letter in "abc"
    ]
    await eventually(lambda: held.started == 2)
    with pytest.raises(Overloaded, match="requests with a new grammar: at most 3"):
        await trials.require(SOUND, MODEL)
    held.release.set()
    await asyncio.gather(*waiting)
    await trials.require(SOUND, MODEL)
    await trials.close()


async def test_new_target_model_starts_a_new_process(trials: GrammarTrials) -> None:
    """A model whose texts end with another token, or with none."""
    await trials.require(SOUND, MODEL)
    (process,) = trials._idle
    await trials.require(SOUND, model_info(stop_token_ids=(1,)))
    assert trials._idle != [process]
    with pytest.raises(InvalidInput, match="needs a model with a token that ends a text"):
        await trials.require(SOUND, model_info())


async def test_tokenizer_without_token_bytes_is_refused(tmp_path: Path) -> None:
    words = models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InvalidInput, match="cannot be followed with this model's tokenizer"):
        await GrammarTrials(tmp_path, max_waiting=1).require(
            SOUND, model_info(vocabulary_size=2, stop_token_ids=(1,))
        )


@pytest.mark.parametrize(
    ("grammar", "complaint"),
    [
        (Grammar("regex", "(a"), "grammar.regex: .*unclosed group"),
        (Grammar("regex", "a(?=b)"), "grammar.regex: .*look-around"),
        (Grammar("json_schema", "{"), "grammar.json_schema: must be JSON"),
        (Grammar("json_schema", "[1]"), "must be a JSON object, or true"),
        (Grammar("json_schema", "false"), "must be a JSON object, or true"),
        (Grammar("json_schema", '{"type": "objct"}'), "Invalid type: objct"),
        (Grammar("choice", "[]"), "grammar.choice: must be a JSON list of texts"),
        (Grammar("choice", "[1]"), "grammar.choice: must be a JSON list of texts"),
        (Grammar("grammar", 'start: "a" | foo'), "unknown name"),
        (Grammar("grammar", "root ::= ("), "grammar.grammar: "),
        (Grammar("regex", ""), f"must have from 1 to {MAX_LETTERS} characters; got '0 char"),
        (Grammar("regex", "a" * (MAX_LETTERS + 1)), f"must have from 1 to {MAX_LETTERS} char"),
        (Grammar("xml", "a"), "grammar: must be one of json_schema, regex, choice, grammar"),  # type: ignore[arg-type]
    ],
)
async def test_invalid_grammars_are_refused(
    trials: GrammarTrials, grammar: Grammar, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        await trials.require(grammar, MODEL)


async def test_cancelled_end_still_waits_for_the_process(trials: GrammarTrials) -> None:
    """The process is waited for even if the loop's thread pool has no free thread."""
    await trials.require(SOUND, MODEL)
    trial_process = trials._idle.pop()
    pool, freed = ThreadPoolExecutor(1), threading.Event()
    asyncio.get_running_loop().set_default_executor(pool)
    try:
        pool.submit(freed.wait)
        ending = asyncio.create_task(trial_process.end())
        await asyncio.sleep(0)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending
        await eventually(lambda: trial_process._process.returncode is not None)
    finally:
        freed.set()


TERMINATE_AT_ONCE = """
import os, signal
from draftloop.grammars import trial

fork = os.fork

def forked():
    if child := fork():
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        signal.pause()
    return child

os.fork = forked
trial.main()
"""


def test_process_terminated_during_a_trial_leaves_no_child() -> None:
    """The child of a terminated process used to continue the trial in vain."""
    model = {"folder": str(bundled_model("verifier")), "vocabulary_size": MODEL.vocabulary_size,
             "stop_token_ids": MODEL.stop_token_ids}  # fmt: skip
    message = "".join(json.dumps(part) + "\n" for part in (model, asdict(SOUND)))
    command, pipe = [sys.executable, "-c", TERMINATE_AT_ONCE], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as trial:
        assert trial.stdin is not None and trial.stdout is not None
        trial.stdin.write(message)
        trial.stdin.flush()
        assert json.loads(trial.stdout.readline()) is None
        child = int(trial.stdout.readline())
        assert trial.wait(60) == 0
    is_running = child in {process for process, _ in running_processes()}
    if is_running:
        os.kill(child, signal.SIGKILL)
    assert not is_running
