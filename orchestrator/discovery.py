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
RESOLVE_S = 3.0
ASK_S = 1.0
ASK_MISSING_S = 0.25
# A replica that takes longer to answer gets no new sessions. A busy one needs less than this.
ANSWER_S = 3.0
TLS_SETTING = "services_tls_ca"

ServiceInfo = tuple[ModelInfo, ServiceLoad]
Ask = Callable[[grpc.aio.Channel, float], Awaitable[ServiceInfo]]
Open = Callable[[Address], grpc.aio.Channel]
# Raises Mismatch if a model is not compatible; takes the model and its address.
RequireFit = Callable[[ModelInfo, str], None]

log = logs.get(__name__)


@dataclass(slots=True, eq=False)
class Watched:
    """A replica that is polled, and the reason if it takes no sessions."""

    replica: Replica
    asking: asyncio.Task[None] | None = None
    problem: str = "not asked yet"
    refused: str = ""  # instance whose refusal has been logged
    told: str = ""  # problem that has been logged


class Discovery:
    """Keeps one role's `replicas` up to date.

    A replica joins when its `Info` answers and its model is compatible. It leaves when `Info`
    fails, as it does while the service loads, drains or is gone, and when its name no longer
    resolves to it. Its running sessions go on, and its channel stays open until they have ended.
    """

    def __init__(
        self, role: str, book: AddressBook, *, open_channel: Open, ask: Ask, require_fit: RequireFit
    ) -> None:
        self.replicas = Replicas()
        self._role = role
        self._book = book
        self._open_channel = open_channel
        self._ask = ask
        self._require_fit = require_fit
        self._watched: dict[Address, Watched] = {}
        self._leaving: list[Replica] = []
        self._reading: asyncio.Task[None] | None = None

    @property
    def missing(self) -> dict[str, str]:
        """Addresses whose replica takes no sessions, and why."""
        watched = [each for each in self._watched.values() if each.replica not in self.replicas]
        return {each.replica.address: each.problem for each in watched}

    async def look(self) -> None:
        """Polls all replicas once. Raises Mismatch if some answered and none is compatible."""
        await self._read_addresses()
        watched = list(self._watched.values())
        answers = await asyncio.gather(*(self._answer(each) for each in watched))
        problems: list[Mismatch] = []
        for each, answer in zip(watched, answers, strict=True):  # the first one sets the model
            try:
                self._judge(each, answer)
            except Mismatch as problem:
                problems.append(problem)
            each.told = each.problem  # the caller reports what is missing
        if problems and not self.replicas:
            raise problems[0]

    def follow(self) -> None:
        """Polls in the background from now on, until `stop`."""
        self._reading = asyncio.create_task(self._keep_reading())

    async def stop(self) -> None:
        """Closes all channels."""
        if self._reading is not None:
            self._reading.cancel()
        for each in self._watched.values():
            if each.asking is not None:
                each.asking.cancel()
        for replica in [*(each.replica for each in self._watched.values()), *self._leaving]:
            await replica.channel.close()

    async def _keep_reading(self) -> None:
        while True:
            for each in self._watched.values():
                if each.asking is None:
                    each.asking = asyncio.create_task(self._keep_asking(each))
            await asyncio.sleep(RESOLVE_S)
            try:
                await self._read_addresses()
                await self._close_the_left()
            except StartupFailure as problem:  # unusable certificates, which may be fixed soon
                log.error("no connection to a new replica", reason=str(problem))
            except Exception as error:  # must not end this loop
                log.error("unforeseen error", exc_info=error)

    async def _read_addresses(self) -> None:
        addresses = await self._book.read()
        for gone in self._watched.keys() - set(addresses):
            self._forget(self._watched.pop(gone))
        for address in addresses:
            if address not in self._watched:
                replica = Replica(address.target, self._open_channel(address))
                self._watched[address] = Watched(replica)

    def _forget(self, each: Watched) -> None:
        if each.asking is not None:
            each.asking.cancel()
        self._leave(each, "its address is no longer listed")
        self._leaving.append(each.replica)

    async def _close_the_left(self) -> None:
        for replica in [each for each in self._leaving if not each.sessions]:
            self._leaving.remove(replica)
            await replica.channel.close()

    async def _keep_asking(self, each: Watched) -> None:
        while True:
            await asyncio.sleep(ASK_S if each.replica in self.replicas else ASK_MISSING_S)
            before, answer = each.problem, await self._answer(each)
            try:
                self._judge(each, answer)
                if answer == before:
                    self._tell_trouble(each)
            except Mismatch:
                pass  # already logged
            except Exception as error:
                log.error("unforeseen error", exc_info=error)
                self._leave(each, f"its answer means nothing: {type(error).__name__}")

    def _tell_trouble(self, each: Watched) -> None:
        """Logs once that certificates keep a replica away; it may have left for another reason."""
        if each.problem != each.told and tls_trouble(each.problem, TLS_SETTING):
            log.warning(f"{self._role} missing", address=each.replica.address, reason=each.problem)
            each.told = each.problem

    async def _answer(self, each: Watched) -> ServiceInfo | str:
        try:
            return await self._ask(each.replica.channel, ANSWER_S)
        except grpc.aio.AioRpcError as error:
            said = str(error.details() or error.code().name)
            trouble = tls_trouble(said, TLS_SETTING)
            return f"{trouble} ({said})" if trouble else said
        except Exception as error:  # must not end the polling
            log.error("unforeseen error", exc_info=error)
            return f"its answer cannot be read: {type(error).__name__}"

    def _judge(self, each: Watched, answer: ServiceInfo | str) -> None:
        replica = each.replica
        if isinstance(answer, str):
            self._leave(each, answer)
            return
        model, load = answer
        try:
            self._require_fit(model, replica.address)
        except Mismatch as problem:
            self._leave(each, str(problem))
            if each.refused != model.instance_id:
                log.error(f"{self._role} refused", address=replica.address, reason=str(problem))
            each.refused = model.instance_id
            raise
        if (twin := self._twin(replica, model.instance_id)) is not None:
            self._leave(each, f"it is the process at {twin.address}")
            return
        if replica.model is None or replica.model.instance_id != model.instance_id:
            replica.worked()  # a new process must not inherit its predecessor's failures
            self.replicas.begin_anew(replica)
        replica.model = model
        replica.report(load)
        self._join(replica)

    def _twin(self, replica: Replica, instance_id: str) -> Replica | None:
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

    def _leave(self, each: Watched, reason: str) -> None:
        each.problem = reason
        if each.replica in self.replicas:
            log.warning(f"{self._role} left", address=each.replica.address, reason=reason)
            each.told = reason
            self.replicas.leave(each.replica)
