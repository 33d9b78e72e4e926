"""Cost curves in the results of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftloop.model_info import CostPoint


def points_of(profile: Mapping[str, Any], role: str) -> tuple[CostPoint, ...]:
    """A role's curve, by tokens of one session, in one of the results' `profiles`."""
    known = profile[role]["forward_ms_by_tokens"].items()
    return tuple(CostPoint(int(tokens), int(1e6 * ms)) for tokens, ms in known)
