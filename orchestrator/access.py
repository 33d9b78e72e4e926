"""Who may call, for which tenant and how much; used by the gRPC and the HTTP server."""

from __future__ import annotations

import dataclasses
import hmac
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from draftloop import logs
from draftloop.errors import Forbidden, InvalidInput, StartupFailure, Unauthenticated
from draftloop.file_state import state_of
from draftloop.request import GenerationParameters
from orchestrator.admission import RequestLimit
from orchestrator.key_file import KeyEntry, KeyFile, hash_of
from orchestrator.rate import RateLimit

RECHECK_INTERVAL_S = 1.0
BEARER_SCHEME = "bearer"

log = logs.get(__name__)


class Caller:
    """The owner of an API key, or everybody if no keys are needed."""

    def __init__(
        self, entry: KeyEntry | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.entry = entry
        self._rate: RateLimit | None = None
        self._running: RequestLimit | None = None
        if entry is not None and entry.requests_per_minute is not None:
            self._rate = RateLimit(entry.requests_per_minute, clock)
        if entry is not None and entry.concurrent_requests is not None:
            self._running = RequestLimit(entry.concurrent_requests, "api key: requests")

    @property
    def name(self) -> str:
        """The key's name, for logs; empty if no keys are needed."""
        return self.entry.name if self.entry is not None else ""

    def apply_limits(
        self, parameters: GenerationParameters, default_max_tokens: int
    ) -> GenerationParameters:
        """The parameters with the key's tenant, and limited to what the key allows.

        Raises Forbidden if another tenant is named, InvalidInput if too many tokens are asked for.
        """
        if self.entry is None:
            return parameters
        tenant, limit = self.entry.tenant, self.entry.max_tokens
        if parameters.tenant not in ("", tenant):
            raise Forbidden(f"tenant: must be {tenant!r}, the api key's, or empty")
        if (
            limit is not None
            and parameters.max_tokens is not None
            and parameters.max_tokens > limit
        ):
            rule = f"must be at most {limit}, the api key's limit"
            raise InvalidInput("max_tokens", rule, parameters.max_tokens)
        max_tokens = parameters.max_tokens
        if limit is not None and max_tokens is None:
            max_tokens = min(default_max_tokens, limit)
        return dataclasses.replace(parameters, tenant=tenant, max_tokens=max_tokens)

    @property
    def max_concurrent(self) -> int | None:
        """Most requests that can be admitted together, however long one waits; None: no limit."""
        if self.entry is None:
            return None
        limits = (self.entry.concurrent_requests, self.entry.requests_per_minute)
        return min((limit for limit in limits if limit is not None), default=None)

    def count_requests(self, count: int = 1) -> None:
        """Counts new requests. Raises Overloaded beyond the key's requests per minute."""
        if self._rate is not None:
            self._rate.take(count)

    def admit(self, count: int = 1) -> AbstractContextManager[None]:
        """A context in which `count` requests run. Raises Overloaded beyond the key's limit."""
        return nullcontext() if self._running is None else self._running.admit(count)


ANONYMOUS = Caller()


class Access:
    """The callers of a key file, which is reread when it changes; without a file, everybody.

    Raises StartupFailure if the file cannot be used at the start. Later, an unusable file is only
    logged, and the previous keys stay in force.
    """

    def __init__(self, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._callers: dict[str, Caller] = {}  # by name
        self._state = state_of(file) if file is not None else None
        self._checked_at = clock()
        if file is not None:
            self._replace_callers(KeyFile.read(file))

    def caller(self, token: str | None) -> Caller:
        """The caller with this key. Raises Unauthenticated if it is missing or unknown."""
        if self._file is None:
            return ANONYMOUS
        self._reload_if_changed()
        if not token:
            raise Unauthenticated("api key: must be given as `authorization: Bearer KEY`")
        digest = hash_of(token)
        found: Caller | None = None
        # All keys are compared, each in constant time, so that the time reveals nothing about them.
        for caller in self._callers.values():
            if caller.entry is not None and hmac.compare_digest(caller.entry.sha256, digest):
                found = caller
        if found is None:
            raise Unauthenticated("api key: is not known here")
        return found

    def _reload_if_changed(self) -> None:
        if self._file is None or self._clock() - self._checked_at < RECHECK_INTERVAL_S:
            return
        self._checked_at = self._clock()
        state = state_of(self._file)
        if state == self._state:
            return
        self._state = state
        try:
            self._replace_callers(_reread(self._file))
        except StartupFailure as error:
            log.error("api keys not renewed", reason=str(error))

    def _replace_callers(self, file: KeyFile) -> None:
        """Replaces the callers. Those whose entry is unchanged keep their counts."""
        previous = self._callers
        self._callers = {
            entry.name: previous[entry.name]
            if entry.name in previous and previous[entry.name].entry == entry
            else Caller(entry, self._clock)
            for entry in file.keys
        }
        log.info("api keys read", file=str(self._file), keys=len(self._callers))


def _reread(file: Path) -> KeyFile:
    """Rereads a key file that has changed.

    Raises StartupFailure if it cannot be used or holds no keys. A file is empty for a moment while
    it is rewritten, and nobody means to shut all clients out.
    """
    key_file = KeyFile.read(file)
    if not key_file.keys:
        raise StartupFailure(f"api_keys: {file} has no keys any more")
    return key_file


def bearer_token(authorization: str | None) -> str | None:
    """The key in an `authorization` header or metadata entry; None if there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == BEARER_SCHEME else None
