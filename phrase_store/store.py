"""The phrase namespaces of this process, and the sessions that read and write them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from draftloop.calibration import Calibration
from draftloop.phrase import Phrase, PhraseAccess, PhraseScope
from draftloop.phrase_store_info import PhraseStoreInfo
from phrase_store import index, unpack
from phrase_store.config import PhraseSettings
from phrase_store.log import is_shared, kind_of
from phrase_store.metrics import STORES
from phrase_store.namespace import Namespace, NamespaceFigures, namespace_name
from phrase_store.outage import Outage
from phrase_store.records import TOKEN_LIMIT
from phrase_store.replication import LinkFigures
from phrase_store.session import PhraseSession
from phrase_store.successors import SuccessorTable


@dataclass(slots=True, kw_only=True)
class StoreFigures(LinkFigures):
    """Figures of all namespaces together; counts include those of evicted namespaces."""

    evictions: int = 0
    namespaces: int = 0
    entries: int = 0
    bytes: int = 0
    waiting: int = 0
    replaying: int = 0  # namespaces that have not yet read what the log held at the start
    open_breakers: int = 0  # namespaces whose latest calls to the log failed
    log_age_s: float = 0.0  # of the namespace whose log was read longest ago

    def count(self, namespace: NamespaceFigures) -> None:
        """Adds the counts of a namespace."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(namespace, name))

    def add(self, one: NamespaceFigures) -> None:
        """Adds counts and levels of a namespace in use."""
        self.count(one)
        self.namespaces += 1
        self.entries += one.entries
        self.bytes += one.bytes
        self.waiting += one.waiting
        self.replaying += not one.replayed
        self.open_breakers += not one.reachable
        self.log_age_s = max(self.log_age_s, one.log_age_s)


COUNTED = ("evictions", *(field.name for field in dataclasses.fields(LinkFigures)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftsFrom:
    """The sources of a session's drafts. What it learns does not depend on them."""

    shared: bool = True
    own_text: bool = True
    recycles: bool = False  # the target's successors


ALL_PHRASES = DraftsFrom()


class PhraseStore:
    """The namespaces in use. If there are too many, the least recently used is evicted."""

    def __init__(self, settings: PhraseSettings) -> None:
        self._settings = settings
        self._namespaces: OrderedDict[str, Namespace] = OrderedDict()
        self._leaving: list[Namespace] = []  # evicted and being closed
        self._outage = Outage()
        self._past = StoreFigures()  # counts of evicted namespaces, so that totals never decrease
        self._lock = threading.Lock()
        STORES.watch(self)

    def namespace(
        self, model_fingerprint: str, tenant: str = "", vocabulary_size: int = TOKEN_LIMIT
    ) -> Namespace:
        """The namespace of a model and tenant; its first use starts reading it from the log.

        Log records with tokens outside the vocabulary are ignored, as anybody may write to the log.
        """
        name = namespace_name(model_fingerprint, tenant)
        dropped: Namespace | None = None
        with self._lock:
            if name not in self._namespaces:
                opened = Namespace(name, self._settings, vocabulary_size, self._outage)
                self._namespaces[name] = opened
                if len(self._namespaces) > self._settings.phrases_namespaces:
                    _, dropped = self._namespaces.popitem(last=False)
                    self._leaving.append(dropped)
            self._namespaces.move_to_end(name)
            namespace = self._namespaces[name]
        if dropped is not None:
            threading.Thread(target=self._close_namespace, args=[dropped], daemon=True).start()
        return namespace

    def _close_namespace(self, namespace: Namespace) -> None:
        namespace.close()  # writes waiting phrases, or drops them
        with self._lock:
            self._leaving.remove(namespace)
            self._past.count(namespace.figures())

    def _publish(self, name: str, origin: int, phrases: Sequence[Phrase]) -> None:
        """Publishes phrases of a running request, and marks its namespace as recently used.

        If the namespace has been evicted, the phrases are dropped. With more concurrent tenants
        than namespaces, reopening it would evict another tenant's in every round.
        """
        with self._lock:
            namespace = self._namespaces.get(name)
            if namespace is None:
                self._past.dropped += len(phrases)
                return
            self._namespaces.move_to_end(name)
        namespace.publish(origin, phrases)

    def _touch(self, name: str) -> None:
        """Marks the namespace of a running request as recently used."""
        with self._lock, contextlib.suppress(KeyError):  # evicted meanwhile
            self._namespaces.move_to_end(name)

    def session(
        self,
        access: PhraseAccess,
        text: Sequence[int],
        *,
        vocabulary_size: int,
        expected_tokens: int,
        publishes: bool,
        harvests: bool = True,
        stop_token_ids: Collection[int] = (),
        calibration: Calibration | None = None,
        drafts_from: DraftsFrom = ALL_PHRASES,
        prediction: Sequence[int] = (),
    ) -> PhraseSession | None:
        """The phrase session of one request, as its scope allows; None if it uses no phrases.

        Of the processes that serve a request, only one must have `publishes` set. The others read
        the phrases from the log, or learn them directly if there is no shared log.
        """
        scope = access.scope
        if scope is PhraseScope.OFF and not drafts_from.recycles:
            return None
        shared, teach, table = None, None, None
        touch: Callable[[], None] | None = None
        if scope.reads:
            namespace = self.namespace(access.target_fingerprint, access.tenant, vocabulary_size)
            shared = namespace.index if drafts_from.shared else None
            is_published = publishes or not is_shared(self._settings.phrases_url)
            if scope is PhraseScope.SHARED and is_published:
                teach = partial(self._publish, namespace.name)
            else:
                touch = partial(self._touch, namespace.name)
            if drafts_from.recycles:
                table = namespace.successors(vocabulary_size)
                table = table if scope is PhraseScope.SHARED else table.copy()
        elif drafts_from.recycles:
            table = SuccessorTable(vocabulary_size)
        return PhraseSession(
            text,
            expected_tokens,
            drafts_from_text=drafts_from.own_text and scope is not PhraseScope.OFF,
            successors=table,
            shared=shared,
            teach=teach,
            touch=touch,
            origin=access.origin,
            harvests=harvests,
            stop_token_ids=stop_token_ids,
            calibration=calibration,
            prediction=prediction,
        )

    def namespaces(self) -> list[Namespace]:
        """The namespaces in use."""
        with self._lock:
            return list(self._namespaces.values())

    def figures(self) -> StoreFigures:
        """Current figures, for metrics."""
        with self._lock:
            total = dataclasses.replace(self._past)
            for namespace in self._leaving:
                total.count(namespace.figures())
            for namespace in self._namespaces.values():
                total.add(namespace.figures())
        return total

    def info(self) -> PhraseStoreInfo:
        """The store's state for clients, without the log's address."""
        figures, settings = self.figures(), self._settings
        return PhraseStoreInfo(
            kind=kind_of(settings.phrases_url),
            namespaces=figures.namespaces,
            unreachable_namespaces=figures.open_breakers,
            replaying_namespaces=figures.replaying,
            most_namespaces=settings.phrases_namespaces,
            records_read=figures.records_read,
            entries=figures.entries,
            bytes=figures.bytes,
            most_namespace_bytes=settings.phrases_mib << 20,
        )

    def close(self) -> None:
        """Ends all threads; waiting phrases are written if that is quick."""
        STORES.forget(self)
        for namespace in self.namespaces():
            namespace.ask_to_stop()
        for namespace in self.namespaces():
            namespace.close()


def warm_up() -> None:
    """Compiles all loops, or loads them from the cache; takes seconds the first time.

    To be called at the start of a service, before it reports that it is ready.
    """
    index.warm_up()
    unpack.warm_up()
