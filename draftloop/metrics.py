"""Where every metric of a process is registered: one registry, so that one page shows all."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

REGISTRY = CollectorRegistry(auto_describe=True)
