"""Harvest: takes phrases from a draft and its verdict (Ouroboros 2402.13720, section 3.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase
from draftloop.tree import ROOT, DraftTree, TokenSource, Verdict


def harvest(
    context: Sequence[int],
    draft: DraftTree,
    verdict: Verdict,
    stop_token_ids: Collection[int] = (),
) -> list[Phrase]:
    """Phrases from the tokens committed after `context` and from predictions on rejected branches.

    All tokens of a phrase were predicted by the target in the same text. A run on a rejected branch
    therefore ends where the branch differs from the target's prediction: later predictions have a
    different context. Nothing is taken from after a stop token, nor from a lookahead window, whose
    branches are no text.
    """
    recent = tuple(context[-MAX_CONTEXT:])
    phrases = _committed(recent, verdict.emitted_token_ids)
    if not verdict.judges(draft):
        return phrases
    accepted, children = set(verdict.accepted_nodes), draft.children()
    # Last tokens up to and including each node; None at and after a stop token.
    pasts: list[tuple[int, ...] | None] = []
    for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
        before = recent if parent == ROOT else pasts[parent]
        if before is None or token in stop_token_ids:
            past = None
        else:
            past = (*before, token)[-MAX_CONTEXT:]
        pasts.append(past)
        prediction = verdict.root_prediction if parent == ROOT else verdict.node_predictions[parent]
        # A node that the target predicted after its parent is already in the parent's run.
        if node in accepted or token == prediction or draft.sources[node] is TokenSource.LOOKAHEAD:
            continue
        if past is not None:
            run = _predicted_tokens(node, children, verdict, stop_token_ids)
            phrases.append(Phrase(past, run, committed=False))
    return phrases


def _committed(recent: tuple[int, ...], emitted: tuple[int, ...]) -> list[Phrase]:
    """All of `emitted`, with the bonus token, in phrases of at most MAX_PHRASE_TOKENS."""
    return [
        Phrase(
            (recent + emitted[:start])[-MAX_CONTEXT:],
            emitted[start : start + MAX_PHRASE_TOKENS],
        )
        for start in range(0, len(emitted), MAX_PHRASE_TOKENS)
    ]


def _predicted_tokens(
    node: int,
    children: dict[tuple[int, int], int],
    verdict: Verdict,
    stop_token_ids: Collection[int],
) -> tuple[int, ...]:
    """The target's predictions after `node`, up to the first that the draft does not contain."""
    run = [verdict.node_predictions[node]]
    while run[-1] not in stop_token_ids and len(run) < MAX_PHRASE_TOKENS:
        child = children.get((node, run[-1]))
        if child is None:
            break
        run.append(verdict.node_predictions[child])
        node = child
    return tuple(run)
