"""Drafts end at the request's own stop tokens and at no others."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest

from draftloop.deadline import Deadline
from draftloop.request import SamplingParameters
from draftloop.tree import DraftBudget
from orchestrator.clients import DrafterStream
from orchestrator.replicas import Replica
from orchestrator.terms import SessionTerms
from protos.drafter_pb2_grpc import DrafterStub
from tests.service.conftest import FINGERPRINT, Start
from tests.service.sessions import PROMPT, open_drafter, propose, sampling, send_and_read
from tests.support.generation_request import generation_request
from tests.support.model_info import model_info

LENGTH = len(PROMPT)
CERTAIN, CUSTOM = 100.0, 17  # a bias, and a token that does not end the model's outputs


def forcing_token(token: int) -> dict[str, Any]:
    """Sampling parameters under which only this token is ever chosen."""
    return {"sampling": sampling(temperature=0.0, logit_bias={token: CERTAIN})}


async def first_draft(
    channel: grpc.aio.Channel, strategy: str, token: int, **more: Any
) -> list[int]:
    """The first draft of a session in which only this token is ever chosen."""
    call: Any = DrafterStub(channel).Draft()
    await send_and_read(call, open_drafter(strategy=strategy, **forcing_token(token), **more))
    answer = await send_and_read(call, propose(LENGTH + 2, [token, token]))
    call.cancel()
    return list(answer.draft.token_ids)


@pytest.mark.parametrize("strategy", ["speculative", "opt_tree", "cascade", "fused", "ouroboros"])
async def test_drafts_end_at_the_requests_stop_tokens(serve_drafter: Start, strategy: str) -> None:
    """Drafts used to end at the model's own end tokens, whatever the request named."""
    async with serve_drafter() as (channel, host):
        [end] = host.model.stop_token_ids
        of_one = partial(first_draft, channel, strategy)
        assert (await of_one(CUSTOM)).count(CUSTOM) > 1
        assert (await of_one(end)).count(end) > 1
        assert (await of_one(end, stop_token_ids=[CUSTOM])).count(end) > 1
        both = [end, CUSTOM]
        assert (await of_one(CUSTOM, stop_token_ids=both)).count(CUSTOM) == 1
        assert (await of_one(end, stop_token_ids=both)).count(end) == 1


@pytest.mark.parametrize("ignores", [True, False])
async def test_drafter_receives_the_requests_stop_tokens(
    serve_drafter: Start, ignores: bool
) -> None:
    async with serve_drafter() as (channel, host):
        [end] = host.model.stop_token_ids
        request = generation_request(
            prompt=PROMPT,
            sampling=SamplingParameters(logit_bias=((end, CERTAIN),)),
            max_tokens=8,
            stop_token_ids=frozenset() if ignores else frozenset((end,)),
        )
        terms = SessionTerms(
            request=request,
            vocabulary_fingerprint=FINGERPRINT,
            target=model_info(),
            answer_timeout_s=20,
            deadline=Deadline.after(60),
        )
        stream = DrafterStream(Replica("one", channel), terms)
        await stream.open(PROMPT)
        draft = await stream.propose([*PROMPT, end], None, DraftBudget(max_nodes=4, max_depth=4))
        assert draft.tree.token_ids == (end,) * (4 if ignores else 1)
        await stream.close()
