"""Helpers for tests of phrase stores."""

from __future__ import annotations

from draftloop.calibration import Calibration
from draftloop.phrase import Phrase
from draftloop.tree import DraftBudget
from phrase_store.index import grow
from phrase_store.namespace import Namespace

CONTEXT = (11, 12, 13)


def proposed_after(namespace: Namespace, context: tuple[int, ...] = CONTEXT) -> tuple[int, ...]:
    """Tokens that the namespace proposes after the context."""
    calibration = Calibration()
    budget = DraftBudget(max_nodes=3, max_depth=3)
    shared = namespace.index
    grown = grow(context, budget, shared=shared, own=None, calibration=calibration, max_leaves=1)
    return grown.tree.token_ids


def phrase(*tokens: int) -> list[Phrase]:
    return [Phrase(CONTEXT, tokens)]
