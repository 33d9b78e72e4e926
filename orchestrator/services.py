"""The model services that this orchestrator uses, and which of them are compatible."""

from __future__ import annotations

import asyncio

import grpc

from draftloop import logs
from draftloop.errors import Mismatch, StartupFailure, Unavailable
from draftloop.model_info import ModelInfo
from draftloop.rpc.channel import open_channel
from orchestrator.addresses import Address, AddressBook
from orchestrator.clients import drafter_info, verifier_info
from orchestrator.config import OrchestratorSettings
from orchestrator.discovery import AskInfo, Discovery, RequireCompatible
from orchestrator.replicas import Replicas

RETRY_INTERVAL_S = 0.25

log = logs.get(__name__)


class Services:
    """Verifiers of one model, and drafters with its vocabulary."""

    def __init__(self, settings: OrchestratorSettings, vocabulary_fingerprint: str) -> None:
        self._settings = settings
        self._vocabulary_fingerprint = vocabulary_fingerprint
        self._verifiers = self._discovery(
            "verifier", settings.verifier_addresses, verifier_info, self._require_verifier
        )
        self._drafters = self._discovery(
            "drafter", settings.drafter_addresses, drafter_info, self._require_drafter
        )

    @property
    def verifiers(self) -> Replicas:
        """The verifiers that take new sessions."""
        return self._verifiers.replicas

    @property
    def drafters(self) -> Replicas:
        """The drafters that take new sessions."""
        return self._drafters.replicas

    @property
    def verifier(self) -> ModelInfo:
        """The target model. Raises Unavailable while none has answered."""
        if self.verifiers.model is None:
            raise Unavailable("verifier: none has answered yet")
        return self.verifiers.model

    @property
    def drafter(self) -> ModelInfo | None:
        """The draft model; None while no drafter has answered."""
        return self.drafters.model

    async def start(self) -> None:
        """Waits for a verifier, looks once for drafters, and follows both roles until `stop`.

        Raises StartupFailure if no verifier address is given, Mismatch if services of a role
        answered and none is compatible.
        """
        if not self._settings.verifier_addresses:
            raise StartupFailure("verifiers: must name at least one address; got none")
        await self._wait_for_verifier()
        await self._drafters.poll_once()
        if self._settings.drafter_addresses and not self.drafters:
            log.warning("no drafter yet", missing=self._drafters.missing)
        self._verifiers.start_polling()
        self._drafters.start_polling()

    async def stop(self) -> None:
        """Closes all connections."""
        await self._verifiers.stop()
        await self._drafters.stop()

    async def _wait_for_verifier(self) -> None:
        last_missing: dict[str, str] | None = None
        while True:
            await self._verifiers.poll_once()
            if self.verifiers:
                return
            if last_missing != self._verifiers.missing:
                last_missing = self._verifiers.missing
                log.info("waiting for a verifier", missing=last_missing)
            await asyncio.sleep(RETRY_INTERVAL_S)

    def _discovery(
        self,
        role: str,
        addresses: list[str],
        ask_info: AskInfo,
        require_compatible: RequireCompatible,
    ) -> Discovery:
        return Discovery(
            role,
            AddressBook(addresses),
            open_channel=self._open_channel,
            ask_info=ask_info,
            require_compatible=require_compatible,
        )

    def _open_channel(self, address: Address) -> grpc.aio.Channel:
        settings = self._settings
        return open_channel(
            address.target, settings.max_message_bytes, settings.services_tls, address.server_name
        )

    def _require_verifier(self, info: ModelInfo, address: str) -> None:
        """Raises Mismatch unless the model is that of the first verifier of this process."""
        info.require_protocol()
        if info.vocabulary_fingerprint != self._vocabulary_fingerprint:
            raise Mismatch(
                f"tokenizer: must be the target model's; {self._settings.tokenizer} has the "
                f"fingerprint {self._vocabulary_fingerprint}, the verifier at {address} has "
                f"{info.vocabulary_fingerprint}"
            )
        if self.verifiers.model is not None:
            self.verifiers.model.require_same_model(info)

    def _require_drafter(self, info: ModelInfo, address: str) -> None:
        """Raises Mismatch unless the vocabulary is the target's and the model that of the others.

        Once all drafters are gone, the next one may have another draft model.
        """
        info.require_protocol()
        self.verifier.require_same_vocabulary(info)
        if self.drafters and self.drafter is not None:
            self.drafter.require_same_model(info)
