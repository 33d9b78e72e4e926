"""Finds out whether a grammar can be followed, in separate processes that may crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from weakref import WeakValueDictionary

from draftloop.errors import InvalidInput, Unavailable
from draftloop.grammar import Grammar
from draftloop.grammars.trial import Model
from draftloop.model_info import ModelInfo
from orchestrator.admission import RequestLimit

COMMAND = (sys.executable, "-P", "-m", "draftloop.grammars.trial")
PROCESSES = 2  # so that one impossible grammar does not keep all other requests waiting
MAX_REMEMBERED = 256


class GrammarTrials:
    """Tries each grammar once and caches the result; starts processes when they are needed."""

    def __init__(self, folder: Path, max_waiting: int) -> None:
        """`folder` holds the tokenizer; at most `max_waiting` requests may wait for trials."""
        self._folder = folder
        self._waiting = RequestLimit(max_waiting, "requests with a new grammar")
        # Requests with the same new grammar wait for the first one's trial; the next one tries it
        # if the first was cancelled.
        self._locks: WeakValueDictionary[tuple[Model, Grammar], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._process_slots = asyncio.Semaphore(PROCESSES)
        self._idle: list[_TrialProcess] = []
        self._results: OrderedDict[tuple[Model, Grammar], str | None] = OrderedDict()

    async def require(self, grammar: Grammar, model_info: ModelInfo) -> None:
        """Returns if the grammar can be followed; this may take seconds.

        Raises InvalidInput naming what is wrong with it, Unavailable if the trial itself failed, or
        Overloaded if too many requests wait. Cancelling this also ends the trial.
        """
        grammar.validate()
        grammar.require_stop_token(model_info.stop_token_ids)
        folder, stop_token_ids = str(self._folder.resolve()), model_info.stop_token_ids
        model = Model(
            folder=folder, vocabulary_size=model_info.vocabulary_size, stop_token_ids=stop_token_ids
        )
        if (model, grammar) not in self._results:
            with self._waiting.admit():
                await self._try_once(model, grammar)
        self._results.move_to_end((model, grammar))
        problem = self._results[model, grammar]
        if len(self._results) > MAX_REMEMBERED:
            self._results.popitem(last=False)
        if problem is not None:
            raise InvalidInput.from_description(grammar.field, problem)

    async def close(self) -> None:
        """Ends the processes."""
        while self._idle:
            await self._idle.pop().end()

    async def _try_once(self, model: Model, grammar: Grammar) -> None:
        async with self._locks.setdefault((model, grammar), asyncio.Lock()):
            if (model, grammar) not in self._results:
                async with self._process_slots:
                    self._results[model, grammar] = await self._try_grammar(model, grammar)

    async def _try_grammar(self, model: Model, grammar: Grammar) -> str | None:
        process = self._idle.pop() if self._idle else None
        # Another target model is served now, or it was killed while it was idle.
        if process is not None and (process.model != model or not process.is_running):
            await process.end()
            process = None
        process = process or await _TrialProcess.start(model)
        try:
            problem = await process.ask(grammar)
        except BaseException:  # including cancellation: the answer is still outstanding
            await process.end()
            raise
        self._idle.append(process)
        return problem


class _TrialProcess:
    """One trial process, used by one task at a time; waiting for it happens in a thread."""

    def __init__(self, model: Model) -> None:
        """Starts the process, which takes a few milliseconds.

        Uses `subprocess`, which does not run a forked copy of this process. In a fork, as made by
        uvloop, gRPC's fork handlers would run and end it.
        """
        self.model = model
        self._exchange_lock = threading.Lock()
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # crashes of hostile grammars are noisy
        )

    @classmethod
    async def start(cls, model: Model) -> _TrialProcess:
        """Starts a process. Raises InvalidInput if the tokenizer does not support grammars."""
        process = cls(model)
        try:
            problem = await asyncio.to_thread(process._exchange, asdict(model))
        except BaseException:
            await process.end()
            raise
        if problem is not None:
            await process.end()
            rule = f"cannot be followed with this model's tokenizer ({problem})"
            raise InvalidInput.from_description("grammar", rule)
        return process

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    async def ask(self, grammar: Grammar) -> str | None:
        """What is wrong with the grammar; None if it can be followed."""
        return await asyncio.to_thread(self._exchange, asdict(grammar))

    async def end(self) -> None:
        """Ends the process and any running trial, even if the caller is cancelled meanwhile."""
        self._process.terminate()
        thread = threading.Thread(target=self._wait_for_exit, daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join)

    def _exchange(self, message: object) -> str | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._exchange_lock:
            try:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except (OSError, ValueError) as error:
                raise Unavailable(f"no grammar can be tried now ({error})") from None
        if not line:
            raise Unavailable("no grammar can be tried now (the process ended)")
        problem: str | None = json.loads(line)
        return problem

    def _wait_for_exit(self) -> None:
        with self._exchange_lock, contextlib.suppress(BrokenPipeError):  # of what was not flushed
            self._process.communicate()
