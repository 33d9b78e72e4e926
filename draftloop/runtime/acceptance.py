"""Acceptance: walk down the draft tree while its tokens equal the target's choices.

Lossless for every tree: the emitted tokens are the target's own choices along one path. The draft
only decides how many of them one forward pass yields.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftloop.tree import ROOT, DraftTree, Verdict


def accept(
    tree: DraftTree,
    root_prediction: int,
    node_predictions: Sequence[int],
    stop_token_ids: Collection[int] = (),
) -> Verdict:
    """The verdict on `tree`; predictions are the target's tokens after the root and every node."""
    children = tree.children()
    accepted: list[int] = []
    emitted = [root_prediction]
    node = ROOT
    # Rule: the child that equals the target's token is accepted; nothing follows a stop token.
    while emitted[-1] not in stop_token_ids:
        child = children.get((node, emitted[-1]))
        if child is None:
            break
        accepted.append(child)
        emitted.append(node_predictions[child])
        node = child
    stopped = emitted[-1] in stop_token_ids
    if stopped and (last := children.get((node, emitted[-1]))) is not None:
        accepted.append(last)  # the stop token itself was drafted
    return Verdict(
        accepted_nodes=tuple(accepted),
        emitted_token_ids=tuple(emitted),
        root_prediction=root_prediction,
        node_predictions=tuple(node_predictions),
        stopped=stopped,
    )
