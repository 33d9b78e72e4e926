"""PEM files as gRPC wants them; a server reads renewed ones without a restart."""

from __future__ import annotations

import grpc

from draftloop import logs
from draftloop.errors import StartupFailure
from draftloop.tls import ClientTls, ServerTls

log = logs.get(__name__)


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Read anew when the files have changed, at the next connection.

    Raises StartupFailure where they cannot be used now; later such files are logged and those of
    before stay in use.
    """
    tls.require_usable()
    certificates = _Certificates(tls)
    return grpc.dynamic_ssl_server_credentials(
        certificates.configuration(),
        certificates.renewed,
        require_client_authentication=tls.client_ca is not None,
    )


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Read now. Raises StartupFailure where the files cannot be used."""
    tls.require_usable()
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes(),
        private_key=tls.key.read_bytes() if tls.key else None,
        certificate_chain=tls.certificate.read_bytes() if tls.certificate else None,
    )


class _Certificates:
    """A server's files and when they were last taken in; called on gRPC's threads."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._seen = self._state()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        authority = tls.client_ca.read_bytes() if tls.client_ca is not None else None
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What has changed since the last time; None where nothing has."""
        try:
            state = self._state()
            if state == self._seen:
                return None
            self._seen = state
            self._tls.require_usable()
            configuration = self.configuration()
        except (OSError, StartupFailure) as error:
            log.error("certificates not renewed", reason=str(error))
            return None
        log.info("certificates renewed", certificate=str(self._tls.certificate))
        return configuration

    def _state(self) -> tuple[tuple[int, int], ...]:
        tls = self._tls
        files = [file for file in (tls.certificate, tls.key, tls.client_ca) if file is not None]
        found = [file.stat() for file in files]
        return tuple((each.st_mtime_ns, each.st_ino) for each in found)
