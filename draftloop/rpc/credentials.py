"""gRPC credentials from PEM files; servers read renewed files without a restart."""

from __future__ import annotations

import grpc

from draftloop.tls import ClientTls, RenewedFiles, ServerTls


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Credentials that are read again, at the next connection, when the files have changed.

    Raises StartupFailure if the files cannot be used now. If they cannot be used later, that is
    logged and the previous ones stay in use.
    """
    tls.require_usable()
    files = RenewedFiles(tls)

    def configuration() -> grpc.ServerCertificateConfiguration:
        authority = tls.client_ca.read_bytes() if tls.client_ca is not None else None
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        lambda: files.read(configuration),  # called on gRPC's threads
        require_client_authentication=tls.client_ca is not None,
    )


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Credentials from the files as they are now. Raises StartupFailure if they cannot be used."""
    tls.require_usable()
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes(),
        private_key=tls.key.read_bytes() if tls.key else None,
        certificate_chain=tls.certificate.read_bytes() if tls.certificate else None,
    )
