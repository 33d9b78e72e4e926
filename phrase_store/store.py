"""The namespaces of phrases in this process, and the sessions that read and teach them."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
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
    """All namespaces together; counts include those that were let go."""

    evictions: int = 0
    namespaces: int = 0
    entries: int = 0
    bytes: int = 0
    waiting: int = 0
    replaying: int = 0  # namespaces that do not have yet what the log held at the start
    open_breakers: int = 0  # namespaces whose last calls to the log went wrong
    log_age_s: float = 0.0  # of the namespace whose log was read longest ago

    def count(self, one: NamespaceFigures) -> None:
        """Adds what a namespace has counted."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(one, name))

    def add(self, one: NamespaceFigures) -> None:
        """Adds a namespace in use."""
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
    """What a session's drafts are made of; what it learns is another matter."""

    shared: bool = True
    own_text: bool = True
    recycles: bool = False  # the target's successors


ALL_PHRASES = DraftsFrom()


class PhraseStore:
    """The namespaces in use; where there are too many, the one used longest ago is let go."""

    def __init__(self, settings: PhraseSettings) -> None:
        self._settings = settings
        self._namespaces: OrderedDict[str, Namespace] = OrderedDict()
        self._leaving: list[Namespace] = []  # pushed out, and closing
        self._outage = Outage()
        self._past = StoreFigures()  # of namespaces that were let go: counts never fall
        self._door = threading.Lock()
        STORES.watch(self)

    def namespace(
        self, model_fingerprint: str, tenant: str = "", vocabulary_size: int = TOKEN_LIMIT
    ) -> Namespace:
        """The phrases of a model and tenant; the first use begins to read them from the log.

        Anybody may write to the log: what has tokens outside the vocabulary is passed over.
        """
        name = namespace_name(model_fingerprint, tenant)
        dropped: Namespace | None = None
        with self._door:
            if name not in self._namespaces:
                opened = Namespace(name, self._settings, vocabulary_size, self._outage)
                self._namespaces[name] = opened
                if len(self._namespaces) > self._settings.phrases_namespaces:
                    _, dropped = self._namespaces.popitem(last=False)
                    self._leaving.append(dropped)
            self._namespaces.move_to_end(name)
            namespace = self._namespaces[name]
        if dropped is not None:
            threading.Thread(target=self._let_go, args=[dropped], daemon=True).start()
        return namespace

    def _let_go(self, namespace: Namespace) -> None:
        namespace.close()  # which writes what waits, or drops it
        with self._door:
            self._leaving.remove(namespace)
            self._past.count(namespace.figures())

    def _publish(self, name: str, origin: int, phrases: Sequence[Phrase]) -> None:
        """Phrases of a running request, which keep its namespace in use.

        Where others have pushed that out they are dropped: with more tenants at once than there
        is room for, opening it again would push out another's with every round.
        """
        with self._door:
            namespace = self._namespaces.get(name)
            if namespace is None:
                self._past.dropped += len(phrases)
                return
            self._namespaces.move_to_end(name)
        namespace.publish(origin, phrases)

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
        """The phrases of one request, as far as its scope goes; None where it wants none.

        Only one process of those that serve a request publishes what it says; the others read it
        in the log, all of it and once, or learn by themselves where they share none.
        """
        scope = access.scope
        if scope is PhraseScope.OFF and not drafts_from.recycles:
            return None
        shared, teach, table = None, None, None
        if scope.reads:
            namespace = self.namespace(access.target_fingerprint, access.tenant, vocabulary_size)
            shared = namespace.index if drafts_from.shared else None
            told = publishes or not is_shared(self._settings.phrases_url)
            if scope is PhraseScope.SHARED and told:
                teach = partial(self._publish, namespace.name)
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
            origin=access.origin,
            harvests=harvests,
            stop_token_ids=stop_token_ids,
            calibration=calibration,
            prediction=prediction,
        )

    def namespaces(self) -> list[Namespace]:
        """Those in use."""
        with self._door:
            return list(self._namespaces.values())

    def figures(self) -> StoreFigures:
        """For metrics."""
        with self._door:
            total = dataclasses.replace(self._past)
            for namespace in self._leaving:
                total.count(namespace.figures())
            for namespace in self._namespaces.values():
                total.add(namespace.figures())
        return total

    def info(self) -> PhraseStoreInfo:
        """For whoever asks the service: where the log is remains its own business."""
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
        """Ends all threads; phrases that wait are written if that goes quickly."""
        STORES.forget(self)
        for namespace in self.namespaces():
            namespace.ask_to_stop()
        for namespace in self.namespaces():
            namespace.close()


def warm_up() -> None:
    """Compiles all loops, or loads them where that was done before: seconds the first time.

    For the start of a service, before it says that it is ready.
    """
    index.warm_up()
    unpack.warm_up()
