"""The strategies that draft with a model, by their names in `DRAFTER_STRATEGIES`."""

from __future__ import annotations

from drafter_service.strategies.base import Strategy
from drafter_service.strategies.cascade import Cascade
from drafter_service.strategies.fused import Fused
from drafter_service.strategies.opt_tree import OptTree
from drafter_service.strategies.ouroboros import Ouroboros
from drafter_service.strategies.speculative import Speculative

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind for kind in (Speculative, Ouroboros, OptTree, Cascade, Fused)
}

__all__ = ["STRATEGIES", "Strategy"]
