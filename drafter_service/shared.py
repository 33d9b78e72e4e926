"""What the sessions of one drafter share: phrases, and how far estimates are to be believed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from drafter_service.session import DrafterSession, SessionRequest, SmallerModel
from drafter_service.strategies import STRATEGIES, Strategy
from draftloop.calibration import Calibration
from draftloop.calibrations import Calibrations
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.sampling import Sampler
from draftloop.speculation import OUROBOROS
from phrase_store.session import PhraseSession
from phrase_store.store import PhraseStore

# How long an output may be is not known here; a table for so many tokens takes 2 MiB.
MOST_EXPECTED_TOKENS = 8192


class Shared:
    """Makes the strategies of sessions, each with a slot of its own."""

    def __init__(self, store: PhraseStore) -> None:
        self.store = store
        # By strategy: what scores and runs mean differs, and leniency changes what is accepted.
        self._calibrations: defaultdict[str, Calibrations] = defaultdict(Calibrations)
        self._reviews = Calibrations()

    def strategy(
        self,
        request: SessionRequest,
        model: LanguageModel,
        slot: Slot,
        smaller: Sequence[SmallerModel] = (),
        *,
        prefill_chunk_tokens: int,
        is_alone: Callable[[], bool],
        followed: Sampler | None = None,
    ) -> Strategy:
        """The strategy that a session asked for."""
        heat = request.sampling.temperature
        calibration = self._calibrations[request.strategy].of(heat)
        session = DrafterSession(
            model,
            slot,
            request,
            prefill_chunk_tokens,
            calibration=calibration,
            reviews=self._reviews.of(heat),
            phrases=self._phrases(request, model, calibration),
            smaller=smaller,
            is_alone=is_alone,
            followed=followed,
        )
        return STRATEGIES[request.strategy](session)

    def _phrases(
        self, request: SessionRequest, model: LanguageModel, calibration: Calibration
    ) -> PhraseSession | None:
        """What the session may know; the orchestrator publishes, so this side only learns."""
        if request.strategy != OUROBOROS:
            return None
        parts = request.ouroboros
        room = model.context_length - len(request.token_ids)
        return self.store.session(
            request.access if parts.history else request.access.without_history(),
            request.token_ids,
            vocabulary_size=model.vocabulary_size,
            publishes=False,
            harvests=parts.harvest,
            expected_tokens=min(MOST_EXPECTED_TOKENS, room),
            stop_token_ids=request.stop_token_ids,
            calibration=calibration,
        )
