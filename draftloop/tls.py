"""Certificate files of servers and clients, and checks that they can be used."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from draftloop import logs
from draftloop.errors import StartupFailure
from draftloop.file_state import FileState, state_of
from draftloop.pem import no_password, require_authority, require_client_files, require_pair

Read = TypeVar("Read")

log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """A server's certificate chain and key as PEM files, and the CA of the clients it accepts.

    Without `client_ca`, everybody may connect; with it, only clients with a certificate of that CA.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def require_usable(self) -> None:
        """Raises StartupFailure naming the setting whose file cannot be used."""
        require_pair("tls_certificate", self.certificate, "tls_key", self.key)
        if self.client_ca is not None:
            require_authority("tls_client_ca", self.client_ca)

    def context(self) -> ssl.SSLContext:
        """A context for Python's own servers, from the current files, which must be usable."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key, password=no_password)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate CA, as in gRPC
            # A resumed session would not be checked against the CA that is trusted by then.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def renewing_context(self) -> ssl.SSLContext:
        """Like `context`, but each connection uses the files as they are when it begins.

        Raises StartupFailure if the files cannot be used now. If they cannot be used later, that is
        logged and the previous ones stay in use.
        """
        self.require_usable()
        files, first = RenewedFiles(self), self.context()
        latest = first

        def use_latest_files(connection: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
            nonlocal latest
            latest = files.read(self.context) or latest
            connection.context = latest

        first.sni_callback = use_latest_files  # also called for clients that name no server
        return first


class RenewedFiles:
    """A server's files, and their state when they were last read."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._seen = self._state()

    def read(self, load: Callable[[], Read]) -> Read | None:
        """What `load` returns, if the files have changed and can be used; None otherwise."""
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            self._tls.require_usable()
            found = load()
        except (OSError, StartupFailure) as error:
            log.error("certificates not renewed", reason=str(error))
            return None
        log.info("certificates renewed", certificate=str(self._tls.certificate))
        return found

    def _state(self) -> tuple[FileState | None, ...]:
        tls = self._tls
        files = [file for file in (tls.certificate, tls.key, tls.client_ca) if file is not None]
        return tuple(map(state_of, files))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The CA that a client trusts, and its own certificate and key, as PEM files.

    The server's certificate must name the host or address that was requested, or else
    `server_name`.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    settings: str = "tls"  # prefix of the names of the settings that these files come from

    def require_usable(self) -> None:
        """Raises StartupFailure naming the setting whose file cannot be used."""
        require_client_files(self.settings, ca=self.ca, certificate=self.certificate, key=self.key)


def require_together(**settings: object) -> bool:
    """Whether these settings are given. Raises ValueError if only some of them are."""
    missing = [name for name, value in settings.items() if value is None]
    if missing and len(missing) < len(settings):
        given = ", ".join(settings.keys() - set(missing))
        raise ValueError(f"{missing[0]} must be given together with {given}; got none")
    return not missing
