"""The services behind this orchestrator: who they are, whether they fit, new sessions on them."""

from __future__ import annotations

import asyncio

import grpc

from draftloop import logs
from draftloop.errors import Mismatch, StartupFailure, Unavailable
from draftloop.model_info import ModelInfo
from draftloop.request import GenerationRequest
from orchestrator.budget import Controller, VerifyCost
from orchestrator.clients import DrafterSession, VerifierSession, drafter_info, verifier_info
from orchestrator.config import OrchestratorSettings
from orchestrator.loop import Generation
from orchestrator.replicas import Replicas
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer

LOOK_AGAIN_S = 0.5
INFO_TIMEOUT_S = 5.0
UNMEASURED_DRAFT_TOKEN_NS = 2_000_000.0

log = logs.get(__name__)


class Deployment:
    """Verifiers and drafters with a vocabulary in common."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self.settings = settings
        self.tokenizer = Tokenizer(settings.tokenizer)
        size = settings.max_message_bytes
        self._verifiers = Replicas(settings.verifier_addresses, size)
        self._drafters = Replicas(settings.drafter_addresses, size)
        self._verifier: ModelInfo | None = None
        self._drafter: ModelInfo | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def verifier(self) -> ModelInfo:
        """The target model. Raises Unavailable while none has answered."""
        if self._verifier is None:
            raise Unavailable("verifier: none has answered yet")
        return self._verifier

    @property
    def drafter(self) -> ModelInfo | None:
        """The draft model; None while no drafter has answered."""
        return self._drafter

    async def start(self) -> None:
        """Waits for a verifier, looks once for a drafter, and goes on looking in the background.

        Raises StartupFailure where a service has another vocabulary or protocol.
        """
        if not len(self._verifiers):
            raise StartupFailure("verifiers: must name at least one address; got none")
        while self._verifier is None:
            self._verifier = await self._ask_verifier()
        if len(self._drafters):
            await self._ask_drafter()
            if self._drafter is None:
                log.warning("no drafter yet", addresses=self.settings.drafters)
                self._watch = asyncio.create_task(self._watch_for_drafter())

    async def stop(self) -> None:
        """Closes all connections."""
        if self._watch is not None:
            self._watch.cancel()
        await self._verifiers.close()
        await self._drafters.close()

    def generation(self, request: GenerationRequest) -> Generation:
        """A checked request, ready to run."""
        settings, info = self.settings, self.verifier
        fingerprint = self.tokenizer.fingerprint
        return Generation(
            request=request,
            verifier=VerifierSession(
                self._verifiers,
                request,
                fingerprint,
                timeout_s=settings.verify_timeout_s,
                reopen_for_s=settings.connect_timeout_s,
            ),
            drafter=DrafterSession(
                self._drafters,
                request,
                fingerprint,
                timeout_s=settings.draft_timeout_s,
                vocabulary_size=info.vocabulary_size,
            ),
            controller=self._controller(request),
            text=TextStream(self.tokenizer, request.prompt, request.stop),
            context_length=info.context_length,
        )

    def _controller(self, request: GenerationRequest) -> Controller:
        info, drafter = self.verifier, self._drafter
        cost = UNMEASURED_DRAFT_TOKEN_NS
        if drafter is not None and drafter.cost_curve:
            cost = float(drafter.cost_curve[0].forward_ns)
        limit = request.max_draft_tokens
        return Controller(
            max_depth=min(limit or self.settings.max_draft_tokens, info.max_draft_nodes),
            verify_cost=VerifyCost(info.cost_curve),
            draft_token_ns=cost,
            fixed=limit is not None,
        )

    async def _ask_verifier(self) -> ModelInfo | None:
        for replica in self._verifiers.by_preference():
            try:
                info = await verifier_info(replica, INFO_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                log.info("waiting for a verifier", address=replica.address, reason=error.details())
                continue
            self._require_fit(info, "verifier", replica.address)
            return info
        await asyncio.sleep(LOOK_AGAIN_S)
        return None

    async def _ask_drafter(self) -> None:
        for replica in self._drafters.by_preference():
            try:
                info = await drafter_info(replica, INFO_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                continue
            self._require_fit(info, "drafter", replica.address)
            self.verifier.require_same_vocabulary(info)
            self._drafter = info

    def _require_fit(self, info: ModelInfo, role: str, address: str) -> None:
        info.require_protocol()
        if role == "verifier" and info.vocabulary_fingerprint != self.tokenizer.fingerprint:
            raise Mismatch(
                f"tokenizer: must be the target model's; {self.settings.tokenizer} has fingerprint "
                f"{self.tokenizer.fingerprint}, the verifier at {address} has "
                f"{info.vocabulary_fingerprint}"
            )

    async def _watch_for_drafter(self) -> None:
        while self._drafter is None:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                await self._ask_drafter()
            except Mismatch as error:
                log.error("drafter refused", reason=str(error))
                return
        log.info("drafter found", model=self._drafter.model_name)
