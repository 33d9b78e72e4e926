"""Settings of the orchestrator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from draftloop.config import (
    DEFAULT_HTTP_PORT,
    DEFAULT_PORTS,
    LOOPBACK,
    ServiceSettings,
    bundled_model,
    comma_separated,
    host_and_port,
    settings_config,
)
from draftloop.speculation import FUSED, STRATEGIES
from draftloop.tls import ClientTls, require_together
from orchestrator.addresses import check_addresses
from orchestrator.gateway.reasoning.marks import MarksName
from orchestrator.gateway.tools.notation import NotationName
from orchestrator.parser_names import PARSER_ALIASES
from phrase_store.config import PhraseSettings

DEFAULT_TEXT_TOKENS = 256  # tokens
ORIGIN_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+")
MAX_OUTPUT_TOKENS = 2**31 - 1  # reduced to the room left in the context


class OrchestratorSettings(PhraseSettings, ServiceSettings):
    """An orchestrator; by default for the bundled pair on loopback."""

    model_config = settings_config("orchestrator")

    listen: str = Field(f"{LOOPBACK}:{DEFAULT_PORTS['orchestrator']}", description="host:port")
    verifiers: str = Field(
        f"{LOOPBACK}:{DEFAULT_PORTS['verifier']}",
        description="addresses of the verifier's replicas, separated by commas; dns:///name:port "
        "stands for every address of the name",
    )
    drafters: str = Field(
        f"{LOOPBACK}:{DEFAULT_PORTS['drafter']}",
        description="addresses of the drafter's replicas, as for the verifier's; may be empty",
    )
    tokenizer: Path = Field(
        bundled_model("verifier"), description="folder of the target model's tokenizer.json"
    )
    services_tls_ca: Path | None = Field(
        None,
        description="PEM file with the CA of verifiers and drafters; with it, connections to them "
        "are TLS",
    )
    services_tls_certificate: Path | None = Field(
        None, description="PEM file with the certificate shown to verifiers and drafters"
    )
    services_tls_key: Path | None = Field(None, description="PEM file with that certificate's key")
    api_keys: Path | None = Field(
        None, description="TOML file of the keys that may call; without it, anyone may"
    )
    default_strategy: str = Field(FUSED, description="strategy of requests that name none")
    default_max_tokens: int | None = Field(
        None,
        ge=1,
        description="limit of requests that name none; if not given, "
        f"{DEFAULT_TEXT_TOKENS} for texts, and the room left in the context for chats",
    )
    max_draft_tokens: int = Field(
        32,
        ge=1,
        le=1024,
        description="most nodes in a draft, for requests that name no size; the verifier's own "
        "limit holds for all",
    )
    max_requests: int = Field(
        256,
        ge=1,
        description="most concurrent requests, including those that wait for a verifier's slot",
    )
    draft_timeout_s: float = Field(
        1.0, gt=0, le=60, description="seconds after which a round goes on without the drafter"
    )
    verify_timeout_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="seconds with neither an answer nor a forward after which a verifier counts as "
        "dead",
    )
    connect_timeout_s: float = Field(
        5.0, gt=0, le=600, description="seconds to look for a living verifier"
    )

    http_listen: str = Field(
        f"{LOOPBACK}:{DEFAULT_HTTP_PORT}",
        description="host:port of the HTTP API; port 0 takes a free one, empty serves none",
    )
    http_address_file: Path | None = Field(
        None, description="file that receives the real HTTP address once requests are accepted"
    )
    http_max_body_bytes: int = Field(
        4 << 20, ge=1 << 10, le=1 << 30, description="largest body of an HTTP request"
    )
    http_request_timeout_s: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="time limit of an HTTP request in seconds, counted from its head",
    )
    http_allowed_origins: str = Field(
        "",
        description="origins whose web pages may call the HTTP API, separated by commas, or *; "
        "if empty, only the server's own pages",
    )
    served_model_name: str = Field(
        "",
        description="name of the model in the HTTP API, or several, separated by commas, of which "
        "answers give the first; if empty, the verifier's own",
    )
    chat_template: Path | None = Field(
        None, description="chat template, a jinja file; if not given, the tokenizer's own"
    )
    tool_call_parser: Literal["auto", "none", NotationName] = Field(
        "auto",
        description="how the model writes tool calls; auto: as its chat template shows",
    )
    reasoning_parser: Literal["auto", "none", MarksName, "harmony"] = Field(
        "auto",
        description="marks that the model writes around its reasoning; auto: as its chat template "
        "shows",
    )
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description="auto: sampling parameters that an HTTP request omits are taken from the "
        "generation_config.json beside the tokenizer; none: from OpenAI's API",
    )

    @field_validator("http_listen")
    @classmethod
    def _check_http_listen(cls, listen: str) -> str:
        return host_and_port(listen) if listen else listen

    @field_validator(*PARSER_ALIASES, mode="before")
    @classmethod
    def _canonical_name(cls, name: object, info: ValidationInfo) -> object:
        aliases = PARSER_ALIASES[str(info.field_name)]
        return aliases.get(name, name) if isinstance(name, str) else name

    @field_validator("http_allowed_origins")
    @classmethod
    def _check_origins(cls, text: str) -> str:
        for origin in comma_separated(text):
            if origin != "*" and not ORIGIN_PATTERN.fullmatch(origin):
                rule = "must be * or origins such as https://page.example:8443"
                raise ValueError(f"{rule}; got {origin}")
        return text

    @field_validator("verifiers", "drafters")
    @classmethod
    def _check_service_addresses(cls, text: str) -> str:
        check_addresses(text)
        return text

    @field_validator("default_strategy")
    @classmethod
    def _check_strategy(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"must be one of {', '.join(STRATEGIES)}")
        return name

    @model_validator(mode="after")
    def _check_services_tls(self) -> Self:
        is_certificate_given = require_together(
            services_tls_certificate=self.services_tls_certificate,
            services_tls_key=self.services_tls_key,
        )
        if is_certificate_given and self.services_tls_ca is None:
            raise ValueError(
                "services_tls_ca must be given together with services_tls_certificate; got none"
            )
        return self

    def default_token_limit(self, *, ends_itself: bool) -> int:
        """Default token limit of a request. `ends_itself`: a chat, whose answer ends by itself."""
        if self.default_max_tokens is not None:
            return self.default_max_tokens
        return MAX_OUTPUT_TOKENS if ends_itself else DEFAULT_TEXT_TOKENS

    @property
    def services_tls(self) -> ClientTls | None:
        """TLS settings of connections to verifiers and drafters; None: no TLS."""
        if self.services_tls_ca is None:
            return None
        return ClientTls(
            settings="services_tls",
            ca=self.services_tls_ca,
            certificate=self.services_tls_certificate,
            key=self.services_tls_key,
        )

    @property
    def allowed_origins(self) -> list[str]:
        """Origins of web pages that may call the HTTP API."""
        return comma_separated(self.http_allowed_origins)

    @property
    def served_model_names(self) -> list[str]:
        """Model names in the HTTP API; empty: the verifier's own."""
        return comma_separated(self.served_model_name)

    @property
    def verifier_addresses(self) -> list[str]:
        """Each is one replica, or a DNS name of several."""
        return comma_separated(self.verifiers)

    @property
    def drafter_addresses(self) -> list[str]:
        """Each is one replica, or a DNS name of several."""
        return comma_separated(self.drafters)
