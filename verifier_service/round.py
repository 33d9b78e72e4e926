"""One round: run the target once over the draft, choose its tokens, accept, commit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from draftloop.logprobs import TokenLogprobs
from draftloop.runtime.acceptance import accept
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.prefill import prefill
from draftloop.runtime.prefixes import LEAST, bring
from draftloop.runtime.prepared import Chosen, Pass, Passes, Wanted
from draftloop.runtime.sampling import likeliest
from draftloop.tree import DraftTree, Verdict
from verifier_service.session import VerifierSession


def verify(session: VerifierSession, draft: DraftTree, *, chunk_tokens: int) -> Task[Verdict]:
    """The verdict on `draft`, with its emitted tokens committed in the session."""
    model, slot = session.model, session.slot
    yield from prefill(model, slot, session.committed, chunk_tokens=chunk_tokens)
    forward = _forward(session, draft)
    if session.goes_alone(forward):
        said = yield from _said_in_one_call(session, forward, draft)
    else:
        said = yield from _said(session, forward, draft)
    verdict = dataclasses.replace(
        accept(draft, said.token_ids[0], said.token_ids[1:], session.request.stop_token_ids),
        successor_ids=tuple(said.successor_ids),
    )
    if said.logits is not None and session.request.logprobs is not None:
        verdict = dataclasses.replace(verdict, logprobs=_logprobs(session, said.logits, verdict))
    session.commit(verdict.emitted_token_ids)
    return verdict


def _forward(session: VerifierSession, draft: DraftTree) -> Forward:
    """What is left of the committed text, and the draft."""
    tail = session.committed[session.slot.length :]
    return Forward(
        session.model,
        session.slot,
        tail,
        draft.token_ids,
        draft.parents,
        logits_from=len(tail) - 1,
        renewed=functools.partial(_renewed, session, draft) if len(tail) > LEAST else None,
    )


def _renewed(session: VerifierSession, draft: DraftTree) -> Forward:
    """The same behind what others have computed meanwhile."""
    bring(session.slot, len(session.committed) - 1)
    return _forward(session, draft)


@dataclass(frozen=True, slots=True)
class _Said:
    """The target's tokens after the last committed one and after every node; their successors."""

    token_ids: Sequence[int]
    successor_ids: Sequence[int]
    logits: Tensor | None = None


def _said(session: VerifierSession, forward: Forward, draft: DraftTree) -> Task[_Said]:
    logits = yield forward
    token_ids = session.sampler.choose(logits, _positions(session, draft), _paths(session, draft))
    successors = session.request.successors
    likeliest_ids = chain.from_iterable(likeliest(logits, successors)) if successors else ()
    return _Said(token_ids, tuple(likeliest_ids), logits)


def _said_in_one_call(session: VerifierSession, forward: Forward, draft: DraftTree) -> Task[_Said]:
    prepared, slot = session.model.prepared, session.slot
    assert prepared is not None, "goes_alone() comes first"
    depth = max(draft.depths(), default=0)
    noise = session.sampler.noise(len(session.committed), depth + 1)
    heat, law = session.request.sampling.temperature, session.sampler.law
    wanted = Wanted(heat, session.request.successors, law)
    answers: list[Chosen] = []

    def run() -> list[Pass]:
        answers.append(prepared.verify(forward, noise, wanted))
        return [answers[0].forward]

    yield Passes(session.model, slot, run)
    chosen = answers[0]
    if session.sampler.follows_paths:
        logits = prepared.logits(1 + len(draft))
        where = _positions(session, draft), _paths(session, draft)
        session.sampler.held(chosen.token_ids, logits, *where)
    return _Said(chosen.token_ids, chosen.successor_ids)


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


def _positions(session: VerifierSession, draft: DraftTree) -> list[int]:
    """Row 0 speaks of the token after the last committed one, row i + 1 of the one after node i."""
    length = len(session.committed)
    return [length, *(length + depth for depth in draft.depths())]


def _paths(session: VerifierSession, draft: DraftTree) -> list[list[int]]:
    """Tokens between the committed text and each row's next token, where anybody looks at them."""
    if not session.sampler.follows_paths:
        return [[]] * (len(draft) + 1)
    nodes = (draft.path(node) for node in range(len(draft)))
    return [[], *([draft.token_ids[node] for node in path] for path in nodes)]
