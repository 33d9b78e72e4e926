"""Statistics of a generation: what its drafts achieved, and where its time went."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from draftloop.logprobs import TokenLogprobs
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftEnd,
    DraftTree,
    ServiceTimings,
    TokenSource,
    Verdict,
    Verification,
)


@dataclass(slots=True)
class SpeculationFigures:
    """Statistics of the drafts of one request, as `SpeculationFigures` in generation.proto.

    The opening of the verifier session, which emits the first token, is no round. `round_tokens`
    are the tokens that rounds emitted, bonus tokens included. `fallback_rounds` asked the drafter
    in vain; `phrase_rounds` did not ask it, as phrases were worth more. Nodes by source: those
    `proposed`, those verified (`drafted`), those `expected` to be accepted by their estimates, and
    those `accepted`. `ends`: rounds by what ended their draft.
    """

    rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    round_tokens: int = 0
    draft_forwards: int = 0
    fallback_rounds: int = 0
    phrase_rounds: int = 0
    reopened_sessions: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_by_source: Counter[TokenSource] = field(default_factory=Counter)
    accepted_by_source: Counter[TokenSource] = field(default_factory=Counter)
    proposed_by_source: Counter[TokenSource] = field(default_factory=Counter)
    expected_by_source: defaultdict[TokenSource, float] = field(
        default_factory=lambda: defaultdict(float)
    )
    ends: Counter[DraftEnd] = field(default_factory=Counter)

    def __add__(self, other: SpeculationFigures) -> SpeculationFigures:
        """The sum of both."""
        names = [each.name for each in fields(self)]
        return SpeculationFigures(
            **{name: _sum(getattr(self, name), getattr(other, name)) for name in names}
        )

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per verification round; 0 before the first round."""
        return self.round_tokens / self.rounds if self.rounds else 0.0

    def observe(self, proposal: Draft, verdict: Verdict, emitted: int) -> None:
        """Counts a round of which `emitted` tokens were kept."""
        draft = proposal.tree
        nodes = verdict.accepted_nodes[:emitted]
        self.ends[proposal.end] += 1
        self.proposed_by_source.update(Counter(draft.sources) | Counter(proposal.proposed))
        for source, reached in zip(draft.sources, draft.path_probabilities(), strict=True):
            self.expected_by_source[source] += reached
        accepted = len(nodes)
        self.drafted_by_source.update(draft.sources)
        self.accepted_by_source.update(draft.sources[node] for node in nodes)
        self.rounds += 1
        self.draft_tokens += len(draft)
        self.accepted_tokens += accepted
        self.round_tokens += emitted
        missing = accepted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position in range(accepted):
            self.accepted_per_position[position] += 1


def _sum(first: Any, second: Any) -> Any:
    """Sum of two numbers, lists (element by element) or dictionaries (key by key)."""
    if isinstance(first, list):
        return [sum(pair) for pair in zip_longest(first, second, fillvalue=0)]
    if not isinstance(first, dict):
        return first + second
    total = first.copy()
    for name, number in second.items():
        total[name] += number
    return total


@dataclass(slots=True)
class RoundTimes:
    """Where one round's time went, in nanoseconds.

    `draft_ns`, `verify_ns`: waiting for the draft and for the verdict. `round_ns`: the whole round.
    `fell_back`: the drafter was asked and gave no draft. `reopened`: a verifier session was lost.
    """

    draft_ns: int = 0
    verify_ns: int = 0
    round_ns: int = 0
    fell_back: bool = False
    reopened: bool = False

    def hops(self, draft: ServiceTimings, verify: ServiceTimings) -> dict[str, int]:
        """The round's time split into parts that add up to it."""
        draft_wire = _wire_ns(self.draft_ns, draft)
        verify_wire = _wire_ns(self.verify_ns, verify)
        lost = draft_wire * self.fell_back + verify_wire * self.reopened
        parts = {
            "draft": draft.forward_ns,
            "verify": verify.forward_ns,
            "queue": draft.queue_ns + verify.queue_ns,
            "wire": draft_wire + verify_wire - lost,
            "lost": lost,
        }
        return {**parts, "rest": max(0, self.round_ns - sum(parts.values()))}


def _wire_ns(waited_ns: int, timings: ServiceTimings) -> int:
    """Waiting time for an answer beyond the time that its service reports."""
    return max(0, waited_ns - timings.service_ns)


@dataclass(slots=True)
class Timings:
    """Where a request's time went, in nanoseconds."""

    time_to_first_token_ns: int = 0
    decode_ns: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    draft_forward_ns: int = 0
    verify_forward_ns: int = 0
    wire_ns: int = 0
    overheads_ns: list[int] = field(default_factory=list)

    @property
    def overhead_per_round_ns(self) -> int:
        """Median over rounds of the time that was not a forward pass."""
        return int(statistics.median(self.overheads_ns)) if self.overheads_ns else 0

    def observe_draft(self, times: RoundTimes, timings: ServiceTimings) -> None:
        """Adds a draft."""
        self.draft_ns += times.draft_ns
        self.draft_forward_ns += timings.forward_ns
        if not times.fell_back:
            self.wire_ns += _wire_ns(times.draft_ns, timings)

    def observe_verify(self, times: RoundTimes, timings: ServiceTimings) -> None:
        """Adds a verification."""
        self.verify_ns += times.verify_ns
        self.verify_forward_ns += timings.forward_ns
        if not times.reopened:
            self.wire_ns += _wire_ns(times.verify_ns, timings)

    def observe_round(self, round_ns: int, draft: Draft, answer: Verification) -> None:
        """Adds the time that a round took beyond its forward passes."""
        forwards = draft.timings.forward_ns + answer.timings.forward_ns
        self.overheads_ns.append(max(0, round_ns - forwards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one round committed.

    `sources`: where each token came from.
    `decode_texts`: decodes the text that each token made certain; deferred, see `TextStream.defer`.
    `logprobs`: one entry per token if the request asked for them, otherwise empty.
    `draft`: the tree that the round verified; `accepted_nodes`: its accepted nodes; `draft_end`:
    why it was not larger.
    """

    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    decode_texts: Callable[[], tuple[str, ...]]
    logprobs: tuple[TokenLogprobs, ...] = ()
    draft: DraftTree = EMPTY_TREE
    accepted_nodes: tuple[int, ...] = ()
    draft_end: DraftEnd = DraftEnd.NONE

    @property
    def texts(self) -> tuple[str, ...]:
        """For each token, the text that it made certain."""
        return self.decode_texts()

    @property
    def text(self) -> str:
        """The text that this piece made certain."""
        return "".join(self.texts)
