"""Discovery of a role's replicas: resolves addresses, polls processes, decides who joins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from draftloop import logs
from draftloop.errors import Mismatch, StartupFailure
from draftloop.load import ServiceLoad
from draftloop.model_info import ModelInfo
from draftloop.rpc.unconnected import tls_trouble
from orchestrator.addresses import Address, AddressBook
from orchestrator.replicas import Replica, Replicas

# Seconds between resolving names, and between polls of a replica that is joined or missing.
RESOLVE_INTERVAL_S = 3.0
POLL_INTERVAL_S = 1.0
POLL_MISSING_INTERVAL_S = 0.25
# A replica that takes longer to answer gets no new sessions. A busy one needs less than this.
INFO_TIMEOUT_S = 3.0
TLS_SETTING = "services_tls_ca"

ServiceInfo = tuple[ModelInfo, ServiceLoad]
AskInfo = Callable[[grpc.aio.Channel, float], Awaitable[ServiceInfo]]
OpenChannel = Callable[[Address], grpc.aio.Channel]
# Raises Mismatch if a model is not compatible; takes the model and its address.
RequireCompatible = Callable[[ModelInfo, str], None]

log = logs.get(__name__)


@dataclass(slots=True, eq=False)
class WatchedReplica:
    """A replica that is polled, and the reason if it takes no sessions."""

    replica: Replica
    polling: asyncio.Task[None] | None = None
    problem: str = "not asked yet"
    refused_instance: str = ""  # instance whose refusal has been logged
    logged_problem: str = ""  # problem that has been logged


class Discovery:
    """Keeps one role's `replicas` up to date.

    A replica joins when its `Info` answers and its model is compatible. It leaves when `Info`
    fails, as it does while the service loads, drains or is gone, and when its name no longer
    resolves to it. Its running sessions go on, and its channel stays open until they have ended.
    """

    def __init__(
        self,
        role: str,
        book: AddressBook,
        *,
        open_channel: OpenChannel,
        ask_info: AskInfo,
        require_compatible: RequireCompatible,
    ) -> None:
        self.replicas = Replicas()
        self._role = role
        self._book = book
        self._open_channel = open_channel
        self._ask_info = ask_info
        self._require_compatible = require_compatible
        self._watched: dict[Address, WatchedReplica] = {}
        self._leaving: list[Replica] = []
        self._address_polling: asyncio.Task[None] | None = None

    @property
    def missing(self) -> dict[str, str]:
        """Addresses whose replica takes no sessions, and why."""
        watched = [each for each in self._watched.values() if each.replica not in self.replicas]
        return {each.replica.address: each.problem for each in watched}

    async def poll_once(self) -> None:
        """Polls all replicas once. Raises Mismatch if some answered and none is compatible."""
        await self._read_addresses()
        watched = list(self._watched.values())
        answers = await asyncio.gather(*(self._request_info(each) for each in watched))
        problems: list[Mismatch] = []
        for each, answer in zip(watched, answers, strict=True):  # the first one sets the model
            try:
                self._judge(each, answer)
            except Mismatch as problem:
                problems.append(problem)
            each.logged_problem = each.problem  # the caller reports what is missing
        if problems and not self.replicas:
            raise problems[0]

    def start_polling(self) -> None:
        """Polls in the background from now on, until `stop`."""
        self._address_polling = asyncio.create_task(self._poll_addresses())

    async def stop(self) -> None:
        """Closes all channels."""
        if self._address_polling is not None:
            self._address_polling.cancel()
        for each in self._watched.values():
            if each.polling is not None:
                each.polling.cancel()
        for replica in [*(each.replica for each in self._watched.values()), *self._leaving]:
            await replica.channel.close()

    async def _poll_addresses(self) -> None:
        while True:
            for each in self._watched.values():
                if each.polling is None:
                    each.polling = asyncio.create_task(self._poll_replica(each))
            await asyncio.sleep(RESOLVE_INTERVAL_S)
            try:
                await self._read_addresses()
                await self._close_idle_channels()
            except StartupFailure as problem:  # unusable certificates, which may be fixed soon
                log.error("no connection to a new replica", reason=str(problem))
            except Exception as error:  # must not end this loop
                log.error("unforeseen error", exc_info=error)

    async def _read_addresses(self) -> None:
        addresses = await self._book.read()
        for removed in self._watched.keys() - set(addresses):
            self._forget(self._watched.pop(removed))
        for address in addresses:
            if address not in self._watched:
                replica = Replica(address.target, self._open_channel(address))
                self._watched[address] = WatchedReplica(replica)

    def _forget(self, watched: WatchedReplica) -> None:
        if watched.polling is not None:
            watched.polling.cancel()
        self._leave(watched, "its address is no longer listed")
        self._leaving.append(watched.replica)

    async def _close_idle_channels(self) -> None:
        for replica in [each for each in self._leaving if not each.sessions]:
            self._leaving.remove(replica)
            await replica.channel.close()

    async def _poll_replica(self, watched: WatchedReplica) -> None:
        while True:
            await asyncio.sleep(
                POLL_INTERVAL_S if watched.replica in self.replicas else POLL_MISSING_INTERVAL_S
            )
            previous_problem, answer = watched.problem, await self._request_info(watched)
            try:
                self._judge(watched, answer)
                if answer == previous_problem:
                    self._log_tls_problem(watched)
            except Mismatch:
                pass  # already logged
            except Exception as error:
                log.error("unforeseen error", exc_info=error)
                self._leave(watched, f"its answer means nothing: {type(error).__name__}")

    def _log_tls_problem(self, watched: WatchedReplica) -> None:
        """Logs once that certificates keep a replica away; it may have left for another reason."""
        if watched.problem != watched.logged_problem and tls_trouble(watched.problem, TLS_SETTING):
            log.warning(
                f"{self._role} missing", address=watched.replica.address, reason=watched.problem
            )
            watched.logged_problem = watched.problem

    async def _request_info(self, watched: WatchedReplica) -> ServiceInfo | str:
        try:
            return await self._ask_info(watched.replica.channel, INFO_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            details = str(error.details() or error.code().name)
            tls_problem = tls_trouble(details, TLS_SETTING)
            return f"{tls_problem} ({details})" if tls_problem else details
        except Exception as error:  # must not end the polling
            log.error("unforeseen error", exc_info=error)
            return f"its answer cannot be read: {type(error).__name__}"

    def _judge(self, watched: WatchedReplica, answer: ServiceInfo | str) -> None:
        replica = watched.replica
        if isinstance(answer, str):
            self._leave(watched, answer)
            return
        model, load = answer
        try:
            self._require_compatible(model, replica.address)
        except Mismatch as mismatch:
            self._leave(watched, str(mismatch))
            if watched.refused_instance != model.instance_id:
                log.error(f"{self._role} refused", address=replica.address, reason=str(mismatch))
            watched.refused_instance = model.instance_id
            raise
        if (same_process := self._find_same_process(replica, model.instance_id)) is not None:
            self._leave(watched, f"it is the process at {same_process.address}")
            return
        if replica.model is None or replica.model.instance_id != model.instance_id:
            replica.record_success()  # a new process must not inherit its predecessor's failures
            self.replicas.forget_prefixes(replica)
        replica.model = model
        replica.report(load)
        self._join(replica)

    def _find_same_process(self, replica: Replica, instance_id: str) -> Replica | None:
        """A joined replica that is the same process, as when a name has IPv4 and IPv6 addresses."""
        return next(
            (
                other for other in self.replicas
                if other is not replica and other.model and other.model.instance_id == instance_id
            ),
            None,
        )  # fmt: skip

    def _join(self, replica: Replica) -> None:
        if replica not in self.replicas:
            log.info(f"{self._role} joined", address=replica.address)
        self.replicas.join(replica)

    def _leave(self, watched: WatchedReplica, reason: str) -> None:
        watched.problem = reason
        if watched.replica in self.replicas:
            log.warning(f"{self._role} left", address=watched.replica.address, reason=reason)
            watched.logged_problem = reason
            self.replicas.leave(watched.replica)
