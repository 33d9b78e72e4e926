"""Review: a draft model checks, in one forward, tokens that a cheaper drafter proposed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from drafter_service.session import DrafterSession
from draftloop.runtime.acceptance import accept
from draftloop.runtime.choices import Choices
from draftloop.tree import DraftTree, Verdict


def review(
    session: DrafterSession,
    logits: Tensor,
    path: Sequence[int],
    guesses: DraftTree,
    leniency: float = 1.0,
) -> tuple[Verdict, list[float]]:
    """The draft model's verdict on `guesses`, which follow the committed tokens and `path`.

    logits: float32 [1 + guesses, vocabulary], after the path and after every guess. The model
    chooses with the target's own noise. Also returned: each emitted token's share of the model's
    scores, noise included, the same measure as for trees, so that all can be calibrated together.
    A leniency L above 1 accepts a guess that is at most L times less likely, noise included, than
    the model's own token (2312.11462, section 3); the guesses must then form a chain.
    """
    sampler = session.sampler
    positions = guesses.predicted_positions(len(session.committed) + len(path))
    paths: list[list[int]] = [[*path]] * len(positions)
    if sampler.depends_on_path:
        paths = [[*path, *tokens] for tokens in guesses.paths_tokens()]
    choices = sampler.best(logits, positions, paths)
    chosen = choices.firsts
    if leniency > 1:
        chosen = _lenient(choices, guesses.token_ids, math.log(leniency))
    verdict = accept(guesses, chosen[0], chosen[1:], session.stop_token_ids)
    return verdict, choices.shares_of(verdict.emitted_rows(), verdict.emitted_token_ids)


def _lenient(choices: Choices, guessed: Sequence[int], slack: float) -> list[int]:
    """The chosen tokens, each replaced by the guess if its score is within `slack` of the best."""
    chosen = choices.firsts
    scores = choices.scores_of(range(len(guessed)), guessed)
    for row, (guess, score) in enumerate(zip(guessed, scores, strict=True)):
        if score >= choices.bests[row][0] - slack:
            chosen[row] = guess
    return chosen
