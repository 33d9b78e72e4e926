"""The drafter's metrics, in addition to those of every model service."""

from __future__ import annotations

from prometheus_client import Counter

from drafter_service.ways import Way
from draftloop.metrics import REGISTRY

FUSED_DRAFTS = Counter(
    "draftloop_fused_drafts_total",
    "Drafts of `fused` by a drafter with several models, by those that made them: `both`, "
    "`larger` or `smaller`. With three models also what the smaller two do among themselves.",
    ["models"],
    registry=REGISTRY,
)
DRAFTED_BY = {way: FUSED_DRAFTS.labels(way.name.lower()) for way in Way}
