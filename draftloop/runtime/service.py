"""What a model service is made of besides its protocol: engine, model, admission."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from draftloop import logs
from draftloop.config import ModelServiceSettings
from draftloop.cost_line import cost_line
from draftloop.errors import Unavailable
from draftloop.model_info import ModelInfo
from draftloop.runtime.admission import Admission
from draftloop.runtime.engine import Engine
from draftloop.runtime.model import LanguageModel, ModelOptions

Part = TypeVar("Part")

log = logs.get(__name__)


class ModelHost:
    """Loads a model on its engine's thread; until then every use raises Unavailable."""

    def __init__(self, settings: ModelServiceSettings, strategies: Sequence[str] = ()) -> None:
        self.settings = settings
        self.engine = Engine()
        self._strategies = strategies
        self._model: LanguageModel | None = None
        self._info: ModelInfo | None = None
        self._admission: Admission | None = None

    @property
    def model(self) -> LanguageModel:
        """The loaded model."""
        return self._loaded(self._model)

    @property
    def info(self) -> ModelInfo:
        """What the service says of itself; its cost curve is the one of this moment."""
        return replace(self._loaded(self._info), cost_curve=self.model.cost_curve)

    @property
    def admission(self) -> Admission:
        """The way to a slot."""
        return self._loaded(self._admission)

    async def start(self) -> None:
        """Loads the model and measures its costs. Raises StartupFailure or InvalidInput."""
        settings = self.settings
        log.info("loading", model=str(settings.model), dtype=settings.dtype)
        model = await asyncio.wrap_future(self.engine.call(self._load))
        self._model = model
        self._info = model.info(strategies=self._strategies)
        self._admission = Admission(model, self.engine, max_waiting=settings.max_waiting)
        line = cost_line(model.cost_curve)
        milliseconds = {
            rows: round(time / 1e6, 3) for rows, time in zip(line.rows, line.times, strict=True)
        }
        log.info("warm", parameters=model.parameters, forward_ms_by_tokens=milliseconds)

    async def stop(self) -> None:
        """Ends the engine's thread."""
        await asyncio.to_thread(self.engine.stop)

    def _load(self) -> LanguageModel:
        settings = self.settings
        model = LanguageModel(
            ModelOptions(
                folder=settings.model,
                dtype=settings.dtype,
                device=settings.device,
                inflate=settings.inflate,
                context_length=settings.context_length,
                max_sessions=settings.max_sessions,
                max_draft_nodes=settings.max_draft_nodes,
                threads=settings.threads,
            )
        )
        model.measure_costs()
        return model

    @staticmethod
    def _loaded(part: Part | None) -> Part:
        if part is None:
            raise Unavailable("the model is still loading")
        return part
