"""Replicas of one role: which one a new session goes to, and when a failed one is tried again."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from draftloop.load import ServiceLoad
from draftloop.model_info import ModelInfo
from orchestrator.beginnings import Beginnings

FIRST_REST_S = 0.25
LONGEST_REST_S = 5.0
MOST_DOUBLINGS = 10  # of the first rest: a replica may fail for days, and floats end
# Of a replica's room, by which it may be busier than another one for the sake of what it knows.
WORTH_OF_A_BEGINNING = 0.125


@dataclass(slots=True, eq=False)
class Replica:
    """One process behind one address: its channel, what it says of itself, how it fares here."""

    address: str
    channel: grpc.aio.Channel
    model: ModelInfo | None = None
    sessions: int = 0
    failures: int = 0
    resting_until: float = field(default=0.0)
    _reported: ServiceLoad = field(default=ServiceLoad())
    _sessions_then: int = 0
    _moved_at: float = -math.inf

    @property
    def resting(self) -> bool:
        """Whether it failed so recently that asking again would be a waste."""
        return time.monotonic() < self.resting_until

    @property
    def connected(self) -> bool:
        """Whether its connection stands, as it does once it has answered and until it dies.

        One that is gone without a refusal, with its container's address, would keep a new session
        waiting for seconds while another replica could have taken it.
        """
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    @property
    def load(self) -> tuple[float, int]:
        """Sessions by room for them, then what an answer takes; the less, the better.

        The sessions of other orchestrators are in the service's own count; ours that came or went
        since it was made are added.
        """
        known = self._reported.sessions + self.sessions - self._sessions_then
        room = self.model.max_sessions if self.model is not None else 1
        return max(known, self.sessions) / max(room, 1), self._reported.answer_ns

    def report(self, load: ServiceLoad) -> None:
        """Takes in how busy the service says it is."""
        if load.forwards != self._reported.forwards:
            self._moved_at = time.monotonic()
        self._reported, self._sessions_then = load, self.sessions

    def unheard_s(self) -> float:
        """Seconds since it last told of new forwards: who waits while it does is in a queue."""
        return time.monotonic() - self._moved_at

    def failed(self) -> None:
        """Lets it rest, longer with every failure in a row."""
        rest = min(LONGEST_REST_S, FIRST_REST_S * 2 ** min(self.failures, MOST_DOUBLINGS))
        self.failures += 1
        self.resting_until = time.monotonic() + rest

    def on_trial(self, seconds: float) -> None:
        """After a failure one request tries it; the others leave it alone until that one knows."""
        if self.failures:
            self.resting_until = time.monotonic() + seconds

    def worked(self) -> None:
        """Forgives its failures."""
        self.failures = 0
        self.resting_until = 0.0


class Replicas:
    """Those replicas of a role that take new sessions; who joins and leaves, discovery decides."""

    def __init__(self, replicas: Iterable[Replica] = ()) -> None:
        self._replicas = list(replicas)
        self._left: list[Replica] = []
        self._model: ModelInfo | None = None
        self._beginnings: Beginnings[Replica] = Beginnings()

    @property
    def model(self) -> ModelInfo | None:
        """What requests may count on with any of them, or could with the last; None before one.

        The least of all limits; costs are those of the replica that has been there longest.
        """
        return self._model

    @property
    def sessions(self) -> int:
        """Those that run, on replicas that have left too."""
        return sum(replica.sessions for replica in (*self._replicas, *self._left))

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __contains__(self, replica: Replica) -> bool:
        return replica in self._replicas

    def join(self, replica: Replica) -> None:
        """From now on it is offered; once more takes in what it says of itself by now."""
        if replica not in self._replicas:
            self._replicas.append(replica)
        self._left = [each for each in self._left if each is not replica]
        self._model = self._common() or self._model

    def leave(self, replica: Replica) -> None:
        """It is offered no more; its running sessions go on."""
        if replica in self._replicas:
            self._replicas.remove(replica)
            self._left = [*(each for each in self._left if each.sessions), replica]
        self._model = self._common() or self._model

    def begin_anew(self, replica: Replica) -> None:
        """Another process answers there: its predecessor took what it had computed with it."""
        self._beginnings.forget(replica)

    def served(self, replica: Replica, tokens: Sequence[int], group: str | None) -> None:
        """The replica has computed this text, for who shares beginnings with the group.

        One that says it keeps no beginnings has forgotten it by now.
        """
        keeps = replica.model is not None and replica.model.prefix_caching
        if group is not None and keeps:
            self._beginnings.note(tokens, group, replica)

    def by_preference(self, tokens: Sequence[int] = (), group: str | None = None) -> list[Replica]:
        """In the order in which they should be tried: the connected, the others, those that rest.

        The first is the one that has computed the longest beginning of the text for the group,
        unless it is much busier than others; or else the less busy of two taken at random
        (Mitzenmacher, "The power of two choices in randomized load balancing"): orchestrators that
        all know the same loads, a moment old, do not all run to the same replica.
        """
        awake = [replica for replica in self._replicas if not replica.resting]
        resting = [replica for replica in self._replicas if replica.resting]
        ready = [replica for replica in awake if replica.connected]
        apart = [replica for replica in awake if not replica.connected]
        random.shuffle(ready)
        ready[:2] = sorted(ready[:2], key=lambda replica: replica.load)
        ready[1:] = sorted(ready[1:], key=lambda replica: replica.load)
        # Only where there is a choice: rounds ask until a drafter is back, and a text is long.
        known, _ = self._find(tokens, group) if len(ready) > 1 else (None, 0)
        if known in ready:
            least = min(replica.load[0] for replica in ready)
            if known.load[0] <= least + WORTH_OF_A_BEGINNING:
                ready.remove(known)
                ready.insert(0, known)
        return ready + apart + sorted(resting, key=lambda replica: replica.resting_until)

    def known(self, tokens: Sequence[int], group: str | None) -> int:
        """How many tokens of the text a replica has computed before."""
        return self._find(tokens, group)[1]

    def _find(self, tokens: Sequence[int], group: str | None) -> tuple[Replica | None, int]:
        if group is None:
            return None, 0
        place, count = self._beginnings.find(tokens, group)
        return (place, count) if place in self._replicas else (None, 0)

    def _common(self) -> ModelInfo | None:
        models = [replica.model for replica in self._replicas if replica.model is not None]
        if not models:
            return None
        return dataclasses.replace(
            models[0],
            context_length=min(model.context_length for model in models),
            max_draft_nodes=min(model.max_draft_nodes for model in models),
        )
