"""Forwards and tasks for an engine with a fake model."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from tests.support.toy_model import FakeModel


def forward_of(model: FakeModel, tokens: int = 1, name: Any = None) -> Forward:
    return Forward(cast(LanguageModel, model), cast(Slot, name), [0] * tokens)


def run_forwards(model: FakeModel, count: int, name: str = "", tokens: int = 1) -> Task[str]:
    for _ in range(count):
        logits: Tensor = yield forward_of(model, tokens, name)
        assert logits.shape == (tokens, 1)
    return name
