"""One round: run the target once over the draft, choose its tokens, accept, commit."""

from __future__ import annotations

import dataclasses
from itertools import chain

from torch import Tensor

from draftloop.logprobs import TokenLogprobs
from draftloop.runtime.acceptance import accept
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.prefill import prefill
from draftloop.runtime.sampling import likeliest
from draftloop.tree import DraftTree, Verdict
from verifier_service.session import VerifierSession


def verify(session: VerifierSession, draft: DraftTree, *, chunk_tokens: int) -> Task[Verdict]:
    """The verdict on `draft`, with its emitted tokens committed in the session."""
    committed = session.committed
    model, slot = session.model, session.slot
    yield from prefill(model, slot, committed, chunk_tokens=chunk_tokens)
    tail = committed[slot.length :]
    logits = yield Forward(
        model, slot, tail, draft.token_ids, draft.parents, logits_from=len(tail) - 1
    )
    # Row 0 speaks of the token after the last committed one, row i + 1 of the one after node i.
    length = len(committed)
    positions = [length, *(length + depth for depth in draft.depths())]
    paths = _paths(session, draft)
    root_prediction, *node_predictions = session.sampler.choose(logits, positions, paths)
    verdict = accept(draft, root_prediction, node_predictions, session.request.stop_token_ids)
    if session.request.successors:
        verdict = dataclasses.replace(verdict, successor_ids=_successors(session, logits))
    if session.request.logprobs is not None:
        verdict = dataclasses.replace(verdict, logprobs=_logprobs(session, logits, verdict))
    session.commit(verdict.emitted_token_ids)
    return verdict


def _successors(session: VerifierSession, logits: Tensor) -> tuple[int, ...]:
    return tuple(chain.from_iterable(likeliest(logits, session.request.successors)))


def _logprobs(
    session: VerifierSession, logits: Tensor, verdict: Verdict
) -> tuple[TokenLogprobs, ...]:
    """Of every emitted token: row 0 said the first, the row of an accepted node the next."""
    emitted = verdict.emitted_token_ids
    rows = [0, *(node + 1 for node in verdict.accepted_nodes)][: len(emitted)]
    logprobs = logits[rows].float().log_softmax(dim=-1)
    count = min(session.request.logprobs or 0, logprobs.shape[-1])
    best = logprobs.topk(count, dim=-1)
    return tuple(
        TokenLogprobs(token, float(row[token]), tuple(zip(ids, values, strict=True)))
        for token, row, ids, values in zip(
            emitted, logprobs, best.indices.tolist(), best.values.tolist(), strict=True
        )
    )


def _paths(session: VerifierSession, draft: DraftTree) -> list[list[int]]:
    """Tokens between the committed text and each row's next token; only penalties look at them."""
    if not session.request.sampling.penalized:
        return [[]] * (len(draft) + 1)
    nodes = (draft.path(node) for node in range(len(draft)))
    return [[], *([draft.token_ids[node] for node in path] for path in nodes)]
