"""Messages of verifier and drafter sessions, and calls that exchange them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

from draftloop.rpc import convert
from draftloop.runtime.service import ModelHost
from draftloop.tree import Verdict
from protos import drafter_pb2, speculation_pb2, verifier_pb2
from tests.service.conftest import FINGERPRINT
from tests.support.waiting import eventually

PROMPT = tuple(range(100, 140))


def sampling(**values: Any) -> speculation_pb2.SamplingParameters:
    return speculation_pb2.SamplingParameters(**{"temperature": 0.7, "seed": 7, **values})


def open_verifier(token_ids: Sequence[int] = PROMPT, **more: Any) -> verifier_pb2.VerifyRequest:
    values: dict[str, Any] = {
        "vocabulary_fingerprint": FINGERPRINT,
        "token_ids": token_ids,
        "prompt_length": len(PROMPT),
        "sampling": sampling(),
    }
    opened = verifier_pb2.OpenVerifierSession(**{**values, **more})
    return verifier_pb2.VerifyRequest(open=opened)


def verify(
    committed_length: int, token_ids: Sequence[int] = (), parents: Sequence[int] | None = None
) -> verifier_pb2.VerifyRequest:
    count = len(token_ids)
    tree = speculation_pb2.DraftTree(
        token_ids=token_ids,
        parents=range(-1, count - 1) if parents is None else parents,
        estimates=[0.5] * count,
        sources=[speculation_pb2.TOKEN_SOURCE_DRAFT_MODEL] * count,
    )
    draft = verifier_pb2.VerifyDraft(committed_length=committed_length, draft=tree)
    return verifier_pb2.VerifyRequest(verify=draft)


def open_drafter(token_ids: Sequence[int] = PROMPT, **more: Any) -> drafter_pb2.DraftRequest:
    values: dict[str, Any] = {
        "vocabulary_fingerprint": FINGERPRINT,
        "token_ids": token_ids,
        "prompt_length": len(PROMPT),
        "sampling": sampling(),
        "strategy": "speculative",
    }
    opened = drafter_pb2.OpenDrafterSession(**{**values, **more})
    return drafter_pb2.DraftRequest(open=opened)


def propose(
    committed_length: int,
    new_token_ids: Sequence[int] = (),
    nodes: int = 4,
    verdict: Verdict | None = None,
    **more: Any,
) -> drafter_pb2.DraftRequest:
    request = drafter_pb2.ProposeDraft(
        committed_length=committed_length,
        new_token_ids=new_token_ids,
        verdict=convert.verdict_to_pb(verdict) if verdict else None,
        max_nodes=nodes,
        max_depth=nodes,
        **more,
    )
    return drafter_pb2.DraftRequest(propose=request)


async def send_and_read(call: Any, message: Any) -> Any:
    """Sends a message and reads the answer; a refused call raises its AioRpcError."""
    await call.write(message)
    answer = await call.read()
    if answer is grpc.aio.EOF:
        raise AssertionError(f"the stream ended: {await call.code()} {await call.details()}")
    return answer


async def wait_until_slots_free(host: ModelHost) -> None:
    """Returns once no session holds a slot; fails after some seconds."""
    slots, model = host.model.options.max_sessions, host.model
    await eventually(
        lambda: host.admission.open_sessions == 0 and model.cache.free_slots == slots, seconds=20
    )


__all__ = ["PROMPT", "BadRequest", "ErrorInfo", "RetryInfo"]
