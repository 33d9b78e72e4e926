"""Compiles the code that drafting needs, or loads it from the cache: seconds the first time."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from drafter_service.session import DrafterSession, SessionRequest
from drafter_service.strategies.fused import Fused
from draftloop.request import SamplingParameters
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Task
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from draftloop.speculation import FUSED
from draftloop.tree import DraftBudget, DraftTree, TokenSource, Verdict

PROMPT = (0, 0)
OFFER = DraftTree.chain((0,), TokenSource.PHRASE)


def warm_up(model: LanguageModel) -> Task[None]:
    """A task for the engine: two drafts, one by separate forwards, one in a single call."""
    request = SessionRequest(
        session_id="warm-up",
        token_ids=PROMPT,
        prompt_length=len(PROMPT),
        sampling=SamplingParameters(temperature=1.0),
        strategy=FUSED,
    )
    slot = model.acquire()
    try:
        for alone in (False, True):
            session = DrafterSession(
                model, slot, request, len(PROMPT), is_alone=partial(bool, alone)
            )
            strategy = Fused(session)
            strategy.offer(OFFER)
            tree = yield from strategy.propose(DraftBudget(max_nodes=2, max_depth=2))
            strategy.observe(tree.token_ids[:1], Verdict((), tree.token_ids[:1], 0))
            slot.truncate(0)
    finally:
        model.cache.release(slot)


def main(folder: str) -> None:
    """Compiles ahead of time, for instance into a container image, with the model in `folder`."""
    engine = Engine()
    try:
        engine.submit(warm_up(LanguageModel(ModelOptions(folder=Path(folder))))).result()
    finally:
        engine.stop()


if __name__ == "__main__":
    main(sys.argv[1])
