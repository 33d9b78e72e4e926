"""What a draft model says, in one forward, of tokens that something cheaper proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from drafter_service.session import DrafterSession
from draftloop.runtime.acceptance import accept
from draftloop.tree import ROOT, DraftTree, Verdict


def review(
    session: DrafterSession,
    logits: Tensor,
    path: Sequence[int],
    guesses: DraftTree,
    leniency: float = 1.0,
) -> tuple[Verdict, list[float]]:
    """The draft model's verdict on `guesses`, which follow the committed tokens and `path`.

    logits: float32 [1 + guesses, vocabulary], after the path and after every guess. The model
    chooses with the target's own noise. The second part are the emitted tokens' shares of its
    scores, noise included, as trees have them too: all are calibrated together. A leniency L above
    1 lets a guess pass that is at most L times less likely, noise included, than the model's own
    token (2312.11462, section 3); it takes guesses in a row.
    """
    sampler, sampling = session.sampler, session.request.sampling
    start = len(session.committed) + len(path)
    positions = [start, *(start + depth for depth in guesses.depths())]
    paths: list[list[int]] = [[*path]] * len(positions)
    if sampling.penalized:
        behind = (guesses.path(node) for node in range(ROOT, len(guesses)))
        paths = [[*path, *(guesses.token_ids[n] for n in nodes)] for nodes in behind]
    shaped = sampler.shape(logits, paths)
    scores = sampler.perturbed(shaped, positions)
    choices: list[int] = scores.argmax(dim=-1).tolist()
    if leniency > 1:
        choices = _lenient(choices, scores, guesses.token_ids, math.log(leniency))
    verdict = accept(guesses, choices[0], choices[1:], session.model.stop_token_ids)
    rows = [0, *(node + 1 for node in verdict.accepted_nodes)][: len(verdict.emitted_token_ids)]
    shares = scores.softmax(dim=-1)[rows, list(verdict.emitted_token_ids)]
    return verdict, shares.tolist()


def _lenient(
    choices: Sequence[int], scores: Tensor, guessed: Sequence[int], slack: float
) -> list[int]:
    """The choices, where a guess comes within `slack` of the best score the guess instead."""
    least = scores.amax(dim=-1) - slack
    return [
        guessed[row] if row < len(guessed) and scores[row, guessed[row]] >= least[row] else choice
        for row, choice in enumerate(choices)
    ]
