"""All strategies and settings that differ in where drafts come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import Case

SOURCES = ("draft_model", "phrases", "own_text", "recycling")
OUROBOROS_OFF = dict.fromkeys(
    ("draft_by_phrases", "lengthen", "harvest", "history", "phrases_alone"), False
)


@dataclass(frozen=True)
class Way:
    """A strategy and the settings of its parts."""

    name: str
    strategy: str
    fields: dict[str, object] = field(default_factory=dict)
    phrase_readers: tuple[str, ...] = ("orchestrator",)  # roles that follow the log
    from_phrases: bool = False  # whether it drafts from phrases of other requests
    weighs: bool = False  # whether it weighs them against other sources and takes the likelier

    def parameters(self, case: Case, tenant: str = "", **more: Any) -> pb.GenerationParameters:
        """The request's parameters; the way's own speculation fields win over those in `more`."""
        parameters = case.parameters(self.strategy, tenant=tenant, **more)
        parameters.speculation.MergeFrom(pb.SpeculationParameters(**self.fields))  # type: ignore[arg-type]
        return parameters


def ouroboros_with(**on: bool) -> dict[str, object]:
    """Ouroboros with only these parts on."""
    return {"ouroboros": shared.OuroborosParameters(**{**OUROBOROS_OFF, **on})}  # type: ignore[arg-type]


def _window(window: int, ngram: int, candidates: int) -> shared.LookaheadParameters:
    return shared.LookaheadParameters(window=window, ngram=ngram, candidates=candidates)


def _source(name: str) -> dict[str, object]:
    sources = shared.FusedParameters(**{source: source == name for source in SOURCES})
    return {"fused": sources, "max_draft_tokens": 16}


# Settings of an `ouroboros` that drafts from other requests' phrases.
BOTH: dict[str, Any] = {"phrase_readers": ("orchestrator", "drafter"), "from_phrases": True}
WAYS = (
    Way("speculative", "speculative"),
    Way("prompt_lookup", "prompt_lookup"),
    Way("lookahead", "lookahead"),
    Way("lookahead of bigrams", "lookahead", {"lookahead": _window(4, 2, 3)}),
    Way("lookahead, wide", "lookahead", {"lookahead": _window(10, 4, 5)}),
    Way("ouroboros", "ouroboros", **BOTH),
    Way("ouroboros, long drafts", "ouroboros", {"max_draft_tokens": 30}, **BOTH),
    Way("ouroboros, drafting only", "ouroboros", ouroboros_with(draft_by_phrases=True), ()),
    Way("ouroboros, lengthening only", "ouroboros", ouroboros_with(lengthen=True), ()),
    Way("ouroboros, harvest only", "ouroboros", ouroboros_with(harvest=True, lengthen=True), ()),
    Way(
        "ouroboros, history only", "ouroboros", ouroboros_with(history=True, lengthen=True), **BOTH
    ),
    Way("ouroboros, private", "ouroboros", {"phrases": shared.PHRASE_SCOPE_PRIVATE}, ()),
    Way("ouroboros, off", "ouroboros", {"phrases": shared.PHRASE_SCOPE_OFF}, ()),
    Way("opt_tree", "opt_tree"),
    Way("opt_tree, wide", "opt_tree", {"opt_tree": shared.OptTreeParameters(nodes=40, delta=0.2)}),
    Way("cascade", "cascade"),
    Way("token_recycling", "token_recycling"),
    Way("token_recycling, large", "token_recycling", {"max_draft_tokens": 30}),
    Way("fused", "fused", from_phrases=True, weighs=True),
    Way("fused, large", "fused", {"max_draft_tokens": 40}, from_phrases=True, weighs=True),
    Way("fused, off", "fused", {"phrases": shared.PHRASE_SCOPE_OFF}, ()),
    *(
        Way(f"fused, {name} alone", "fused", _source(name), from_phrases=name == "phrases")
        for name in SOURCES
    ),
)
