"""One round: run the target once over the draft, choose its tokens, accept, commit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from draftloop.errors import DraftloopError
from draftloop.runtime.acceptance import accept
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.overflow import NO_NUMBER, advice
from draftloop.runtime.prefill import prefill
from draftloop.runtime.prefixes import MIN_SHARED_TOKENS, copy_shared_prefix
from draftloop.runtime.prepared import ChoiceSettings, Chosen, Pass, Passes
from draftloop.runtime.sampling import likeliest
from draftloop.tree import EMPTY_TREE, DraftTree, Verdict
from verifier_service.logprobs import prompt_logprobs, token_logprobs
from verifier_service.session import VerifierSession


def verify(session: VerifierSession, draft: DraftTree, *, chunk_tokens: int) -> Task[Verdict]:
    """Verifies `draft`, commits the emitted tokens in the session and returns the verdict.

    Raises DraftloopError if the logit of an emitted token is not finite.
    """
    model, slot = session.model, session.slot
    if session.request.prompt_logprobs is not None and session.prompt_logprobs is None:
        session.prompt_logprobs = yield from prompt_logprobs(session, chunk_tokens=chunk_tokens)
    yield from prefill(model, slot, session.committed, chunk_tokens=chunk_tokens)
    length = slot.length
    predictions, verdict = yield from _run_and_accept(session, draft)
    wrong = _first_non_finite(predictions, verdict)
    if len(draft) and wrong is not None:
        # A node's NaN or infinity times a weight of zero, is NaN in rows that do not attend to it.
        slot.truncate(length)
        predictions, without_draft = yield from _run_and_accept(session, EMPTY_TREE)
        verdict = _accept_nothing(without_draft, verdict)
        wrong = _first_non_finite(predictions, verdict)
    if wrong is not None:
        raise DraftloopError(
            f"what the model says of the token at position {len(session.committed) + wrong} "
            f"{NO_NUMBER} in {model.options.dtype}; {advice(model.options.dtype)}"
        )
    if (count := session.request.logprobs) is not None:
        logprobs = token_logprobs(
            predictions.logits[verdict.emitted_rows()], verdict.emitted_token_ids, count
        )
        verdict = dataclasses.replace(verdict, logprobs=logprobs)
    session.commit(verdict.emitted_token_ids)
    return verdict


def _run_and_accept(
    session: VerifierSession, draft: DraftTree
) -> Task[tuple[_Predictions, Verdict]]:
    """Runs the target over the draft; returns its choices and the verdict."""
    forward = _forward(session, draft)
    if session.fits_one_call(forward):
        predictions = yield from _predict_in_one_call(session, forward, draft)
    else:
        predictions = yield from _predict(session, forward, draft)
    verdict = accept(
        draft, predictions.token_ids[0], predictions.token_ids[1:], session.request.stop_token_ids
    )
    return predictions, dataclasses.replace(verdict, successor_ids=tuple(predictions.successor_ids))


def _accept_nothing(without_draft: Verdict, rejected: Verdict) -> Verdict:
    """A verdict that accepts no node of the draft.

    `without_draft` is the verdict on an empty draft. The predictions and successors after the
    draft's nodes are taken from `rejected`.
    """
    successors = len(without_draft.successor_ids)
    return dataclasses.replace(
        without_draft,
        node_predictions=rejected.node_predictions,
        successor_ids=without_draft.successor_ids + rejected.successor_ids[successors:],
    )


def _first_non_finite(predictions: _Predictions, verdict: Verdict) -> int | None:
    """Index of the first emitted token whose row of logits holds NaN or +inf; None if none does.

    From a row with NaN, token 0 is chosen, or one that the grammar puts in its place. From a row
    with +inf, the infinite token is chosen, or token 0 if dividing by the temperature has made NaN
    of it. Tokens that filters excluded are -inf here.
    """
    if predictions.are_finite:
        return None
    rows, tokens = verdict.emitted_rows(), verdict.emitted_token_ids
    finite: list[bool] = predictions.logits[rows, list(tokens)].isfinite().tolist()  # one transfer
    for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        if not finite[place] or (token == 0 and bool(predictions.logits[row].isposinf().any())):
            return place
    return None


def _forward(session: VerifierSession, draft: DraftTree) -> Forward:
    """The forward over the committed tokens not run yet, and over the draft."""
    tail = session.committed[session.slot.length :]
    return Forward(
        session.model,
        session.slot,
        tail,
        draft.token_ids,
        draft.parents,
        logits_from=len(tail) - 1,
        renewed=functools.partial(_renewed, session, draft)
        if len(tail) > MIN_SHARED_TOKENS
        else None,
    )


def _renewed(session: VerifierSession, draft: DraftTree) -> Forward:
    """`_forward` after copying rows that other sessions have computed meanwhile."""
    copy_shared_prefix(session.slot, len(session.committed) - 1)
    return _forward(session, draft)


@dataclass(frozen=True, slots=True)
class _Predictions:
    """The target's tokens after the last committed one and after every node.

    successor_ids: the likeliest successors at each of these positions, concatenated. logits:
    float32, [1 + nodes, vocabulary] or more rows. are_finite: whether the tokens' logits are known
    to be finite.
    """

    token_ids: Sequence[int]
    successor_ids: Sequence[int]
    logits: Tensor
    are_finite: bool = False


def _predict(session: VerifierSession, forward: Forward, draft: DraftTree) -> Task[_Predictions]:
    logits = yield forward
    positions = draft.predicted_positions(len(session.committed))
    token_ids = session.sampler.choose(logits, positions, _paths(session, draft))
    successors = session.request.successors
    likeliest_ids = chain.from_iterable(likeliest(logits, successors)) if successors else ()
    return _Predictions(token_ids, tuple(likeliest_ids), logits)


def _predict_in_one_call(
    session: VerifierSession, forward: Forward, draft: DraftTree
) -> Task[_Predictions]:
    prepared, slot = session.model.prepared, session.slot
    assert prepared is not None, "fits_one_call() comes first"
    depth = max(draft.depths(), default=0)
    noise = session.sampler.noise(len(session.committed), depth + 1)
    temperature, cuts = session.request.sampling.temperature, session.sampler.cuts
    wanted = ChoiceSettings(temperature, session.request.successors, cuts)
    answers: list[Chosen] = []

    def run() -> list[Pass]:
        answers.append(prepared.verify(forward, noise, wanted))
        return [answers[0].forward]

    yield Passes(session.model, slot, run)
    chosen, logits = answers[0], prepared.logits
    has_grammar = session.sampler.depends_on_path
    if has_grammar:  # which may replace tokens by others, whose scores were not looked at
        positions = draft.predicted_positions(len(session.committed))
        session.sampler.apply_grammar(chosen.token_ids, logits, positions, _paths(session, draft))
    are_finite = chosen.is_finite and not has_grammar
    return _Predictions(chosen.token_ids, chosen.successor_ids, logits, are_finite)


def _paths(session: VerifierSession, draft: DraftTree) -> list[list[int]]:
    """The draft tokens before each row's prediction; empty if the sampler does not need them."""
    needs_paths = session.sampler.depends_on_path
    return draft.paths_tokens() if needs_paths else [[]] * (len(draft) + 1)
