"""Whether a grammar can be followed, found out in processes that may end of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path

from draftloop.errors import InvalidInput, Unavailable
from draftloop.grammar import Grammar
from draftloop.grammars.trial import Model
from draftloop.model_info import ModelInfo

COMMAND = (sys.executable, "-P", "-m", "draftloop.grammars.trial")
PROCESSES = 2  # so that one who asks for the impossible does not keep all others waiting
MOST_REMEMBERED = 256
MOST_LETTERS = 1 << 20  # of an answer, which quotes


class GrammarTrials:
    """Tries each grammar once and remembers; processes are started when they are needed."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds the tokenizer."""
        self._folder = folder
        self._room = asyncio.Semaphore(PROCESSES)
        self._idle: list[_Trials] = []
        self._found: OrderedDict[tuple[Model, Grammar], str | None] = OrderedDict()

    async def require(self, grammar: Grammar, served: ModelInfo) -> None:
        """Raises InvalidInput naming what is wrong with it, Unavailable where nobody can tell."""
        grammar.validate()
        grammar.require_end(served.stop_token_ids)
        folder, stops = str(self._folder.resolve()), served.stop_token_ids
        model = Model(folder=folder, vocabulary_size=served.vocabulary_size, stop_token_ids=stops)
        if (model, grammar) not in self._found:
            async with self._room:
                self._found[model, grammar] = await self._tried(model, grammar)
        self._found.move_to_end((model, grammar))
        wrong = self._found[model, grammar]
        if len(self._found) > MOST_REMEMBERED:
            self._found.popitem(last=False)
        if wrong is not None:
            raise InvalidInput.passed_on(grammar.field, wrong)

    async def close(self) -> None:
        """Ends the processes."""
        while self._idle:
            await self._idle.pop().end()

    async def _tried(self, model: Model, grammar: Grammar) -> str | None:
        trials = self._idle.pop() if self._idle else None
        if trials is not None and trials.model != model:  # another target model is served now
            await trials.end()
            trials = None
        trials = trials or await _Trials.begun(model)
        try:
            found = await trials.ask(grammar)
        except BaseException:  # whoever asked may have left before the answer
            await trials.end()
            raise
        self._idle.append(trials)
        return found


class _Trials:
    """One process."""

    def __init__(self, model: Model, process: asyncio.subprocess.Process) -> None:
        self.model = model
        self._process = process

    @classmethod
    async def begun(cls, model: Model) -> _Trials:
        """Raises InvalidInput where the tokenizer is none that grammars can be followed with."""
        pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL  # bombs end loudly
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=pipe, stdout=pipe, stderr=quiet, limit=MOST_LETTERS
        )
        trials = cls(model, process)
        try:
            unfit = await trials._said(asdict(model))
        except BaseException:
            await trials.end()
            raise
        if unfit is not None:
            await trials.end()
            rule = f"cannot be followed with this model's tokenizer ({unfit})"
            raise InvalidInput.passed_on("grammar", rule)
        return trials

    async def ask(self, grammar: Grammar) -> str | None:
        """What is wrong with the grammar; None where it can be followed."""
        return await self._said(asdict(grammar))

    async def _said(self, message: object) -> str | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            line = await self._process.stdout.readline()
        except (OSError, ValueError) as error:
            raise Unavailable(f"no grammar can be tried now ({error})") from None
        if not line:
            raise Unavailable("no grammar can be tried now (the process ended)")
        found: str | None = json.loads(line)
        return found

    async def end(self) -> None:
        """With whatever it is trying."""
        assert self._process.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._process.stdin.close()
        await self._process.wait()
