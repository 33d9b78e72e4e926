"""NaN and infinity are never chosen, and a draft token that causes them changes no token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafter_service import session as drafter
from drafter_service.strategies import STRATEGIES
from draftloop.errors import DraftloopError
from draftloop.grammar import Grammar
from draftloop.request import SamplingParameters
from draftloop.runtime.engine import Engine
from draftloop.runtime.model import LanguageModel
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftTree, TokenSource, Verdict
from tests.support.toy_model import load_model, save_model
from verifier_service.round import verify
from verifier_service.session import SessionRequest, VerifierSession

PROMPT = [5, 17, 3, 88, 41]
BAD = 95  # as an input; it is never chosen
LETTER = 65  # "a", which all of the distributions below allow
SUCCESSORS = 2
SAMPLINGS = {
    "greedy": SamplingParameters(temperature=0.0),
    "plain": SamplingParameters(temperature=1.0, seed=3),
    "drawn": SamplingParameters(temperature=0.8, seed=3),
    "top p": SamplingParameters(temperature=0.8, top_p=0.9, seed=3),
    "top k": SamplingParameters(temperature=0.8, top_k=8, seed=3),
    "penalized": SamplingParameters(temperature=0.0, repetition_penalty=1.2),
    "held": SamplingParameters(temperature=0.8, seed=3, grammar=Grammar("regex", "[a-z]+")),
}


def corrupt_embedding(weights: dict[str, Tensor], value: float) -> None:
    """Makes every logit after the token NaN or infinite."""
    weights["model.embed_tokens.weight"][BAD] = value


def set_infinite_logit(weights: dict[str, Tensor]) -> None:
    """Makes a letter's logit infinite after the token, by a dimension that only the token uses."""
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0
    weights["model.embed_tokens.weight"][:, 0] = 0
    weights["model.embed_tokens.weight"][BAD, 0] = 50
    weights["lm_head.weight"][LETTER] = 0
    weights["lm_head.weight"][LETTER, 0] = torch.finfo(torch.float32).max


FAULTS: dict[str, Callable[[dict[str, Tensor]], None]] = {
    "NaN": partial(corrupt_embedding, value=float("nan")),
    "inf": partial(corrupt_embedding, value=float("inf")),
    "one is infinite": set_infinite_logit,
}


@pytest.fixture(scope="module", params=FAULTS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LanguageModel:
    """A model without finite logits after one of its tokens."""
    folder = save_model(tmp_path_factory.mktemp("model"))
    weights = load_file(folder / "model.safetensors")
    FAULTS[request.param](weights)
    weights["lm_head.weight"][BAD] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return load_model(folder)


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.stop()


class DrivenSession:
    """A verifier session that is driven by an engine."""

    def __init__(
        self, model: LanguageModel, engine: Engine, sampling: SamplingParameters, alone: bool
    ) -> None:
        self._engine = engine
        self._new_request = partial(
            SessionRequest, session_id="test", sampling=sampling, successors=SUCCESSORS
        )
        self._new_session = partial(VerifierSession, model, is_alone=lambda: alone)
        self._model = model

    def begins(self, prompt: list[int]) -> None:
        request = self._new_request(token_ids=tuple(prompt), prompt_length=len(prompt))
        self._session = self._new_session(self._model.acquire(), request)

    def goes_on(self, draft: DraftTree) -> Verdict:
        return self._engine.submit(verify(self._session, draft, chunk_tokens=512)).result()

    def ends(self) -> None:
        self._model.cache.release(self._session.slot)


@pytest.fixture(params=[True, False], ids=["one call", "two"])
def alone(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("law", SAMPLINGS)
def test_drafted_bad_token_changes_no_other_token(
    model: LanguageModel, engine: Engine, law: str, alone: bool
) -> None:
    text = DrivenSession(model, engine, SAMPLINGS[law], alone)
    text.begins(PROMPT)
    plain = [text.goes_on(EMPTY_TREE).root_prediction for _ in range(8)]
    text.ends()
    assert BAD not in plain and any(plain)
    text.begins(PROMPT)
    emitted = list(text.goes_on(EMPTY_TREE).emitted_token_ids)
    while len(emitted) < 6:
        correct = plain[len(emitted)]
        draft = DraftTree((correct, BAD, 7), (-1, -1, 1), (0.5,) * 3, (TokenSource.PHRASE,) * 3)
        verdict = text.goes_on(draft)
        assert verdict.judges(draft) and len(verdict.successor_ids) == 4 * SUCCESSORS
        emitted += verdict.emitted_token_ids
    text.ends()
    assert emitted == plain[: len(emitted)]


@pytest.mark.parametrize("law", SAMPLINGS)
def test_logits_without_finite_values_are_an_error(
    model: LanguageModel, engine: Engine, law: str, alone: bool
) -> None:
    """Otherwise the choice would always be token 0, or would depend on the temperature."""
    text = DrivenSession(model, engine, SAMPLINGS[law], alone)
    text.begins([*PROMPT, BAD])
    position = len(PROMPT) + 1
    for draft in (EMPTY_TREE, DraftTree((0,), (-1,), (0.5,), (TokenSource.PHRASE,))):
        with pytest.raises(
            DraftloopError, match=rf"position {position} is no finite .* float32; its"
        ):
            text.goes_on(draft)
    text.ends()


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("law", SAMPLINGS)
def test_draft_model_with_non_finite_logits_keeps_drafting(
    model: LanguageModel, engine: Engine, law: str, name: str, alone: bool
) -> None:
    """Such a draft model drafts anything or nothing, but neither hangs nor fails."""
    request = drafter.SessionRequest(
        session_id="test", token_ids=(*PROMPT, BAD), prompt_length=len(PROMPT) + 1,
        sampling=SAMPLINGS[law], strategy=name,
    )  # fmt: skip
    session = drafter.DrafterSession(model, model.acquire(), request, 64, is_alone=lambda: alone)
    strategy, budget = STRATEGIES[name](session), DraftBudget(max_nodes=6, max_depth=4)
    for _ in range(3):
        tree = engine.submit(strategy.propose(budget)).result()
        tree.validate(vocabulary_size=model.vocabulary_size, max_nodes=6)
        session.commit([LETTER], len(session.committed) + 1)
        strategy.observe([LETTER], Verdict((), (LETTER,), LETTER))
    model.cache.release(session.slot)
