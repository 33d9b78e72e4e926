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
BUDGET = DraftBudget(max_nodes=2, max_depth=2)


def warm_up(model: LanguageModel) -> Task[None]:
    """A task for the engine: drafts, first by separate forwards, then each in a single call.

    The second draft of a session follows the text to a node of the first one, which was extended
    ahead of the text.
    """
    prompt = PROMPT[: model.context_length]
    request = SessionRequest(
        session_id="warm-up",
        token_ids=prompt,
        prompt_length=len(prompt),
        sampling=SamplingParameters(temperature=1.0),
        strategy=FUSED,
    )
    slot = model.acquire()
    try:
        for alone in (False, True):
            session = DrafterSession(
                model, slot, request, len(prompt), is_alone=partial(bool, alone)
            )
            strategy = Fused(session)
            strategy.offer(OFFER)
            strategy.economy.pays(1.0, BUDGET)  # chains ask it themselves
            token_ids = (yield from strategy.propose(BUDGET)).token_ids[:1]
            steps = iter((True, True, False))  # continue, continue, end
            yield from strategy.draft_ahead(steps.__next__)
            session.commit(token_ids, len(prompt) + len(token_ids))
            strategy.observe(token_ids, Verdict((), token_ids, 0))
            yield from strategy.propose(BUDGET)
            slot.truncate(0)
    finally:
        model.cache.release(slot)


def main(folder: str) -> None:
    """Compiles what drafters and verifiers need, for instance into a container image.

    `folder`: a model, which may be any.
    """
    engine = Engine()
    try:
        model = LanguageModel(ModelOptions(folder=Path(folder)))
        engine.call(model.warm_up).result()
        engine.submit(warm_up(model)).result()
    finally:
        engine.stop()


if __name__ == "__main__":
    main(sys.argv[1])
