"""The parts of a model service besides its protocol: engine, models and admission."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from draftloop import logs
from draftloop.config import ModelServiceSettings
from draftloop.cost_line import CostLine, cost_line
from draftloop.errors import InvalidInput, StartupFailure, Unavailable
from draftloop.grammar import Grammar
from draftloop.load import ServiceLoad
from draftloop.model_info import ModelInfo, require_model_folder, vocabulary_fingerprint
from draftloop.runtime import metrics
from draftloop.runtime.admission import Admission
from draftloop.runtime.engine import Engine
from draftloop.runtime.follower import FAILED
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.gathering import Gathering
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import Text
from draftloop.runtime.ranks import Ranks
from draftloop.runtime.room import enough_memory
from draftloop.runtime.ruin import Ruin
from draftloop.runtime.sessions import Opening
from draftloop.runtime.trial import error_text

Part = TypeVar("Part")
WarmUp = Callable[[LanguageModel], Task[None]]

CHUNK_ON_CPU, CHUNK_ON_GPU = 256, 2048  # prompt tokens
HANGS_S = 300.0  # a forward that runs for so long hangs: steps should take less than a second
HANG_CHECKS = 10  # checks within that time
LOAD_MEMORY = 0.8  # weight of earlier messages in `answer_ns`

log = logs.get(__name__)


class ModelHost:
    """Loads the models on the engine's thread; until then every use raises Unavailable.

    `smaller_models` are folders of further models with the first one's vocabulary and context;
    each has a cache of its own.
    """

    def __init__(
        self,
        settings: ModelServiceSettings,
        strategies: Sequence[str] = (),
        smaller_models: Sequence[Path] = (),
    ) -> None:
        self.settings = settings
        self._gathering = Gathering(self._costs)
        self.engine = Engine(gathering=self._gathering, ruin=Ruin(_exit_process, self._try_forward))
        self._strategies = strategies
        self._smaller_folders = smaller_models
        self.smaller_models: list[LanguageModel] = []
        self._model: LanguageModel | None = None
        self._info: ModelInfo | None = None
        self._admission: Admission | None = None
        self._answer_ns = 0.0
        self._ranks: Ranks | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def model(self) -> LanguageModel:
        """The loaded model."""
        return self._loaded(self._model)

    @property
    def info(self) -> ModelInfo:
        """The description of the service, with the current cost curve."""
        return dataclasses.replace(self._loaded(self._info), cost_curve=self.model.cost_curve)

    @property
    def admission(self) -> Admission:
        """Assigns slots to sessions."""
        return self._loaded(self._admission)

    @property
    def load(self) -> ServiceLoad:
        """How busy the service is now."""
        return ServiceLoad(
            running_sessions=self.admission.open_sessions,
            waiting_sessions=self.admission.waiting_sessions,
            answer_ns=round(self._answer_ns),
            forwards=self.engine.forwards,
        )

    @functools.cached_property
    def prefill_chunk_tokens(self) -> int:
        """Maximum tokens of one prompt in a forward.

        A few hundred keep a CPU busy, and with fewer, other sessions wait less. On a GPU, a forward
        with thousands takes hardly longer than one with a single token.
        """
        on_cpu = self.model.device.type == "cpu"
        return self.settings.prefill_chunk_tokens or (CHUNK_ON_CPU if on_cpu else CHUNK_ON_GPU)

    def text_of(self, opening: Opening) -> Text | None:
        """The text by which a session shares cached prefixes; None if it does not."""
        return opening.text() if self.settings.prefix_caching else None

    async def compile_grammar(self, grammar: Grammar | None) -> None:
        """Compiles a grammar for all models. Raises InvalidInput if it is invalid."""
        if grammar is not None:
            for model in (self.model, *self.smaller_models):
                await asyncio.to_thread(model.grammars.follow, grammar)

    def record_service_time(self, service_ns: int) -> None:
        """Records how long a message took, from arrival to answer."""
        memory = LOAD_MEMORY if self._answer_ns else 0.0
        self._answer_ns = memory * self._answer_ns + (1 - memory) * service_ns

    async def start(self, warm_up: WarmUp | None = None) -> None:
        """Loads the model and measures its costs. Raises StartupFailure or InvalidInput.

        `warm_up` runs before sessions are admitted: they would wait for it, and it holds a slot.
        """
        settings = self.settings
        log.info("loading", model=str(settings.model), dtype=settings.dtype)
        model = await asyncio.wrap_future(
            self.engine.call(functools.partial(self._load, logs.role()))
        )
        if not model.row_by_row:
            log.warning("rounding depends on the batch", effect="near ties may fall either way")
        for folder in self._smaller_folders:
            log.info("loading", model=str(folder), dtype=settings.dtype)
            load = functools.partial(self._load_smaller, folder, model)
            self.smaller_models.append(await asyncio.wrap_future(self.engine.call(load)))
        if warm_up is not None:
            await self.engine.submit_awaitable(warm_up(model))
            await asyncio.wrap_future(self.engine.call(self._gathering.forget))
        self._model = model
        self._info = model.info(strategies=self._strategies, prefix_caching=settings.prefix_caching)
        self._admission = Admission(model, self.engine, max_waiting=settings.max_waiting)
        metrics.HOSTS.watch(self)
        self._watch = asyncio.create_task(self._exit_if_forward_hangs())
        line = self._costs()
        milliseconds = {
            rows: round(time / 1e6, 3) for rows, time in zip(line.rows, line.times, strict=True)
        }
        log.info("warm", parameters=model.parameters, forward_ms_by_tokens=milliseconds)

    async def stop(self) -> None:
        """Ends the engine's thread, and the other ranks of a split model."""
        metrics.HOSTS.forget(self)
        if self._watch is not None:
            self._watch.cancel()
        # Loading may take minutes; it is not waited for, as it ends with the process.
        stop = functools.partial(self.engine.stop, waits=self._model is not None)
        await asyncio.to_thread(stop)
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.stop)

    async def _exit_if_forward_hangs(self) -> None:
        """Ends the process if a forward hangs: health would still report SERVING.

        Counts how often it sees the same forward instead of measuring time, because the clock runs
        on while the whole process is stopped.
        """
        seen, before = 0, None
        while seen < HANG_CHECKS:
            await asyncio.sleep(HANGS_S / HANG_CHECKS)
            running = self.engine.forward_began
            seen = seen + 1 if running is not None and running == before else 0
            before = running
        _exit_process(TimeoutError(f"a forward has run for {HANGS_S:g} s"), 1)

    def _costs(self) -> CostLine:
        return cost_line(self.model.cost_curve)

    def _try_forward(self) -> None:
        """Runs a forward of one token that belongs to no request; raises what that raises.

        On the engine's thread. Raises Overloaded if sessions hold all slots.
        """
        slot = self.model.acquire()
        try:
            self.model.forward([Forward(self.model, slot, [0])])
        finally:
            self.model.cache.release(slot)

    def _load(self, role: str) -> LanguageModel:
        options = _options(self.settings)
        with enough_memory(options.device):
            model = (
                self._start_split_model(options, role) if options.split else LanguageModel(options)
            )
            model.warm_up()
            model.measure_costs()
            return model

    def _start_split_model(self, options: ModelOptions, role: str) -> LanguageModel:
        """The leader's part of a split model; starts the other ranks."""
        settings = self.settings
        configured = functools.partial(
            logs.configure, role, log_format=settings.log_format, level=settings.log_level
        )
        self._ranks = Ranks(options, configured)
        return self._ranks.model()

    def _load_smaller(self, folder: Path, first: LanguageModel) -> LanguageModel:
        require_model_folder(folder, "smaller_models")
        _require_one_vocabulary(first.options.folder, folder)
        options = dataclasses.replace(
            first.options,
            folder=folder,
            inflate="",
            context_length=first.context_length,
            tensor_parallel_size=1,
        )
        try:
            with enough_memory(options.device):
                model = LanguageModel(options)
        except InvalidInput as error:
            raise StartupFailure(f"smaller_models: {folder}: {error}") from error
        if model.vocabulary_size != first.vocabulary_size:
            raise StartupFailure(
                f"smaller_models: {folder} has {model.vocabulary_size} tokens, "
                f"{first.options.folder} has {first.vocabulary_size}; they must be as many"
            )
        model.measure_costs()
        return model

    @staticmethod
    def _loaded(part: Part | None) -> Part:
        if part is None:
            raise Unavailable("the model is still loading")
        return part


def _exit_process(error: BaseException, in_a_row: int) -> None:
    """Ends the process, like `Ranks.handle_failure`; its sessions continue on another replica.

    It exits at once without clean-up, for which a broken device might wait forever.
    """
    log.error("forwards go on to fail, so this service ends to be started again",
              in_a_row=in_a_row, error=error_text(error))  # fmt: skip
    os._exit(FAILED)


def _options(settings: ModelServiceSettings) -> ModelOptions:
    """The model's options, from the settings."""
    return ModelOptions(
        folder=settings.model,
        dtype=settings.dtype,
        quantization="" if settings.quantization == "none" else settings.quantization,
        device=settings.device,
        torch_compile=settings.torch_compile,
        cuda_graphs=settings.cuda_graphs,
        tensor_parallel_size=settings.tensor_parallel_size,
        inflate=settings.inflate,
        context_length=settings.context_length,
        memory_share=settings.memory_share,
        prompt_step_s=settings.prompt_step_s,
        max_sessions=settings.max_sessions,
        max_draft_nodes=settings.max_draft_nodes,
        threads=settings.threads,
    )


def _require_one_vocabulary(first: Path, smaller: Path) -> None:
    expected, found = vocabulary_fingerprint(first), vocabulary_fingerprint(smaller)
    if found != expected:
        raise StartupFailure(
            f"smaller_models: {smaller} has the vocabulary {found}, {first} has {expected}; "
            f"give models with one tokenizer"
        )
