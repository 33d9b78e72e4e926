"""Parameters with which a request's sessions are opened."""

from __future__ import annotations

from dataclasses import dataclass

from draftloop.deadline import Deadline
from draftloop.model_info import ModelInfo
from draftloop.request import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """What a session is for, and its time limits: per answer, and for the whole request."""

    request: GenerationRequest
    vocabulary_fingerprint: str
    target: ModelInfo
    answer_timeout_s: float
    deadline: Deadline
