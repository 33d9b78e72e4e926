"""What the sessions of one drafter share: phrases, and what is learned about estimates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from drafter_service.config import DRAFT_TEMPERATURE
from drafter_service.experience import Experience
from drafter_service.session import DrafterSession, SessionRequest
from drafter_service.strategies import STRATEGIES, Strategy
from drafter_service.ways import Guessing
from draftloop.calibration import Calibration
from draftloop.calibrations import step_of
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.sampling import Sampler
from draftloop.speculation import OUROBOROS, OuroborosParameters
from phrase_store.session import PhraseSession
from phrase_store.store import PhraseStore


class ExperienceKey(NamedTuple):
    """Key of sessions that learn together.

    strategy: scores and runs differ in meaning between strategies, and leniency changes what is
    accepted. place: of the model among the drafter's models. step: of temperature (`step_of`).
    """

    strategy: str
    place: int
    step: int


class StrategyFactory:
    """Creates the strategies of sessions.

    `draft_temperature`: factor on the request's temperature for sampling from draft models.
    """

    def __init__(self, store: PhraseStore, draft_temperature: float = DRAFT_TEMPERATURE) -> None:
        self.store = store
        self._draft_temperature = draft_temperature
        self._experiences: defaultdict[ExperienceKey, Experience] = defaultdict(Experience)

    def strategy(
        self,
        request: SessionRequest,
        models: Sequence[tuple[LanguageModel, Slot]],
        *,
        prefill_chunk_tokens: int,
        is_alone: Callable[[], bool],
        ready_sampler: Sampler | None = None,
    ) -> Strategy:
        """The strategy that a session asked for; `models` with slots, larger ones first."""
        session: DrafterSession | None = None
        step = step_of(request.sampling.temperature)
        # The cost of guesses depends on the lookahead window: sessions with another one than the
        # default do not share what they learn about it.
        has_default_window = request.ouroboros.lookahead == OuroborosParameters().lookahead
        for place, (model, slot) in reversed(list(enumerate(models))):
            experience = self._experiences[ExperienceKey(request.strategy, place, step)]
            if not has_default_window:
                experience = replace(experience, guessing=Guessing())
            session = DrafterSession(
                model,
                slot,
                request,
                prefill_chunk_tokens,
                experience=experience,
                phrases=None if place else self._phrases(request, model, experience.calibration),
                smaller=session,
                is_alone=is_alone,
                ready_sampler=ready_sampler,
                draft_temperature=self._draft_temperature,
            )
        assert session is not None, "models is empty"
        return STRATEGIES[request.strategy](session)

    def _phrases(
        self, request: SessionRequest, model: LanguageModel, calibration: Calibration
    ) -> PhraseSession | None:
        """The phrases that the session may use; only the orchestrator publishes new ones."""
        if request.strategy != OUROBOROS:
            return None
        parts = request.ouroboros
        return self.store.session(
            request.access if parts.history else request.access.without_history(),
            request.token_ids,
            vocabulary_size=model.vocabulary_size,
            publishes=False,
            harvests=parts.harvest,
            expected_tokens=model.context_length - len(request.token_ids),
            stop_token_ids=request.stop_token_ids,
            calibration=calibration,
        )
