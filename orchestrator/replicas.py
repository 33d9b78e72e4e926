"""Replicas of one role: which one a new session goes to, and when a failed one is retried."""

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
from orchestrator.prefix_index import PrefixIndex

FIRST_REST_S = 0.25
MAX_REST_S = 5.0
MAX_DOUBLINGS = 10  # of the first rest: a replica may fail for days, and floats overflow
# A replica that knows a prefix is preferred while its load exceeds the least by at most this share
# of its room.
PREFIX_LOAD_TOLERANCE = 0.125


@dataclass(slots=True, eq=False)
class Replica:
    """One process at one address: its channel, what it reports, and our experience with it."""

    address: str
    channel: grpc.aio.Channel
    model: ModelInfo | None = None
    sessions: int = 0
    failures: int = 0
    resting_until: float = field(default=0.0)
    _reported: ServiceLoad = field(default=ServiceLoad())
    _sessions_at_report: int = 0
    _progressed_at: float = -math.inf

    @property
    def is_resting(self) -> bool:
        """Whether it failed so recently that it should not be asked yet."""
        return time.monotonic() < self.resting_until

    @property
    def is_connected(self) -> bool:
        """Whether its connection is up, which it is from its first answer until it dies.

        A container that has vanished together with its address refuses nothing. It would keep a new
        session waiting for seconds while another replica could have taken it.
        """
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    @property
    def load(self) -> tuple[float, int]:
        """Sessions as a share of the maximum, then nanoseconds of an answer; smaller is better.

        The service's own count includes the sessions of other orchestrators. Our sessions that were
        opened or closed since that count are added or subtracted.
        """
        sessions = self._reported.sessions + self.sessions - self._sessions_at_report
        room = self.model.max_sessions if self.model is not None else 1
        return max(sessions, self.sessions) / max(room, 1), self._reported.answer_ns

    def report(self, load: ServiceLoad) -> None:
        """Records the load that the service reports."""
        if load.forwards != self._reported.forwards:
            self._progressed_at = time.monotonic()
        self._reported, self._sessions_at_report = load, self.sessions

    def silence_s(self) -> float:
        """Seconds since it last reported new forwards.

        While it runs forwards, a session that gets no answer is waiting in a queue.
        """
        return time.monotonic() - self._progressed_at

    def record_failure(self) -> None:
        """Lets it rest, longer with every consecutive failure."""
        rest = min(MAX_REST_S, FIRST_REST_S * 2 ** min(self.failures, MAX_DOUBLINGS))
        self.failures += 1
        self.resting_until = time.monotonic() + rest

    def reserve_for_trial(self, seconds: float) -> None:
        """Reserves a replica that has failed for one request, which tries it for `seconds`.

        Other requests leave it alone until the result is known.
        """
        if self.failures:
            self.resting_until = time.monotonic() + seconds

    def record_success(self) -> None:
        """Clears its failures after a success."""
        self.failures = 0
        self.resting_until = 0.0


class Replicas:
    """The replicas of a role that take new sessions. Discovery decides which join and leave."""

    def __init__(self, replicas: Iterable[Replica] = ()) -> None:
        self._replicas = list(replicas)
        self._left: list[Replica] = []
        self._model: ModelInfo | None = None
        self._prefixes: PrefixIndex[Replica] = PrefixIndex()

    @property
    def model(self) -> ModelInfo | None:
        """What requests can rely on with any replica; None before the first one joins.

        Limits are the smallest of all replicas; everything else, as the costs, is that of the
        replica that joined first. Once all have left, the last value remains.
        """
        return self._model

    @property
    def sessions(self) -> int:
        """Number of running sessions, including those on replicas that have left."""
        return sum(replica.sessions for replica in (*self._replicas, *self._left))

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __contains__(self, replica: Replica) -> bool:
        return replica in self._replicas

    def join(self, replica: Replica) -> None:
        """Offers the replica for new sessions. Call it again when its reported model changes."""
        if replica not in self._replicas:
            self._replicas.append(replica)
        self._left = [each for each in self._left if each is not replica]
        self._model = self._common_model() or self._model

    def leave(self, replica: Replica) -> None:
        """Stops offering the replica. Its running sessions go on."""
        if replica in self._replicas:
            self._replicas.remove(replica)
            self._left = [*(each for each in self._left if each.sessions), replica]
        self._model = self._common_model() or self._model

    def forget_prefixes(self, replica: Replica) -> None:
        """Forgets the replica's prefixes: another process, without them, now runs there."""
        self._prefixes.forget(replica)

    def record_prefix(self, replica: Replica, tokens: Sequence[int], group: str | None) -> None:
        """Notes that the replica has computed this text for a group of requests sharing prefixes.

        Ignored for replicas that report no prefix caching.
        """
        caches_prefixes = replica.model is not None and replica.model.prefix_caching
        if group is not None and caches_prefixes:
            self._prefixes.note(tokens, group, replica)

    def by_preference(self, tokens: Sequence[int] = (), group: str | None = None) -> list[Replica]:
        """Replicas in the order in which to try them: connected, unconnected, then resting ones.

        First comes the replica that has computed the longest prefix of the text for the group,
        unless it is much busier than others. Otherwise it is the less busy of two random ones
        (Mitzenmacher, "The power of two choices in randomized load balancing"). So orchestrators
        that all know the same slightly outdated loads do not all choose the same replica.
        """
        awake = [replica for replica in self._replicas if not replica.is_resting]
        resting = [replica for replica in self._replicas if replica.is_resting]
        ready = [replica for replica in awake if replica.is_connected]
        unconnected = [replica for replica in awake if not replica.is_connected]
        random.shuffle(ready)
        ready[:2] = sorted(ready[:2], key=lambda replica: replica.load)
        ready[1:] = sorted(ready[1:], key=lambda replica: replica.load)
        # Only if there is a choice: rounds call this until a drafter is back, and texts are long.
        preferred, _ = self._find_prefix(tokens, group) if len(ready) > 1 else (None, 0)
        if preferred in ready:
            least_load = min(replica.load[0] for replica in ready)
            if preferred.load[0] <= least_load + PREFIX_LOAD_TOLERANCE:
                ready.remove(preferred)
                ready.insert(0, preferred)
        return ready + unconnected + sorted(resting, key=lambda replica: replica.resting_until)

    def cached_tokens(self, tokens: Sequence[int], group: str | None) -> int:
        """How many tokens of the text a replica has already computed."""
        return self._find_prefix(tokens, group)[1]

    def _find_prefix(self, tokens: Sequence[int], group: str | None) -> tuple[Replica | None, int]:
        if group is None:
            return None, 0
        place, count = self._prefixes.find(tokens, group)
        return (place, count) if place in self._replicas else (None, 0)

    def _common_model(self) -> ModelInfo | None:
        models = [replica.model for replica in self._replicas if replica.model is not None]
        if not models:
            return None
        return dataclasses.replace(
            models[0],
            context_length=min(model.context_length for model in models),
            max_draft_nodes=min(model.max_draft_nodes for model in models),
        )
