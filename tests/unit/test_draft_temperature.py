"""A draft model runs at a lower temperature than the request's, with the same noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from drafter_service.config import DRAFT_TEMPERATURE, DrafterSettings
from drafter_service.session import SessionRequest
from drafter_service.shared import StrategyFactory
from draftloop.request import SamplingParameters
from draftloop.runtime.engine import Engine
from draftloop.runtime.model import LanguageModel
from draftloop.speculation import DRAFTER_STRATEGIES
from draftloop.tree import DraftBudget, DraftTree
from phrase_store.config import PhraseSettings
from phrase_store.store import PhraseStore
from tests.support.toy_model import load_model, save_model

PROMPT = tuple(range(20, 50))
BUDGET = DraftBudget(max_nodes=12, max_depth=6)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_model(save_model(tmp_path_factory.mktemp("toy")))


def draft_of(
    model: LanguageModel, name: str, temperature: float, part: float, *, alone: bool
) -> DraftTree:
    store = PhraseStore(PhraseSettings(phrases_url="memory://"))
    request = SessionRequest(
        session_id="test", token_ids=PROMPT, prompt_length=len(PROMPT), strategy=name,
        sampling=SamplingParameters(temperature=temperature, seed=5),
    )  # fmt: skip
    engine, slot = Engine(), model.acquire()
    try:
        strategy = StrategyFactory(store, part).strategy(
            request, [(model, slot)], prefill_chunk_tokens=64, is_alone=lambda: alone
        )
        return engine.submit(strategy.propose(BUDGET)).result()
    finally:
        engine.stop()
        model.cache.release(slot)
        store.close()


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("name", DRAFTER_STRATEGIES)
def test_draft_temperature_scales_the_requests_temperature(
    toy: LanguageModel, name: str, alone: bool
) -> None:
    part = draft_of(toy, name, 1.0, 0.25, alone=alone)
    assert part == draft_of(toy, name, 0.25, 1.0, alone=alone) and len(part)
    assert part != draft_of(toy, name, 1.0, 1.0, alone=alone)
    assert draft_of(toy, name, 0.0, 0.25, alone=alone) == draft_of(toy, name, 0.0, 1.0, alone=alone)


def test_draft_temperature_is_a_drafter_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert DrafterSettings().draft_temperature == DRAFT_TEMPERATURE
    monkeypatch.setenv("DRAFTLOOP_DRAFTER_DRAFT_TEMPERATURE", "1")
    assert DrafterSettings().draft_temperature == 1
    for invalid in ("0", "1.5", "-1", "nan", "cold"):
        monkeypatch.setenv("DRAFTLOOP_DRAFTER_DRAFT_TEMPERATURE", invalid)
        with pytest.raises(ValidationError, match="draft_temperature"):
            DrafterSettings()
