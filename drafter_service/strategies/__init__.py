"""Drafting strategies, chosen by name. A new one is a file here and a line in STRATEGIES."""

from __future__ import annotations

from drafter_service.strategies.base import Strategy
from drafter_service.strategies.cascade import Cascade
from drafter_service.strategies.chain import Chain
from drafter_service.strategies.ouroboros import Ouroboros

STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (Chain, Ouroboros, Cascade)}

__all__ = ["STRATEGIES", "Strategy"]
