"""Channels to other services, with one common set of options."""

from __future__ import annotations

import grpc

from draftloop.rpc.credentials import channel_credentials
from draftloop.rpc.direct import DIRECT
from draftloop.tls import ClientTls

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
NO_LIMIT = -1  # on the size of messages, for clients of a server that has one


def shared_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Options that must be the same on both ends, except for a client's NO_LIMIT."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # Without this, newer gRPC waits a minute for the answer to a ping.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def open_channel(
    address: str, max_message_bytes: int, tls: ClientTls | None = None, server_name: str = ""
) -> grpc.aio.Channel:
    """A channel that reconnects quickly; no connection is made before the first call.

    `server_name`, or that of `tls`: the name in the server's certificate, if it is not the address.
    Raises StartupFailure if the files of `tls` cannot be used.
    """
    options: list[tuple[str, int | str]] = [
        *shared_options(max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, this is the time limit of one attempt; a TLS handshake takes several
        # round trips.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        DIRECT,
        # Own connections per channel: a test may start several services on one port in turn.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if name := server_name or tls.server_name:
        options.append(("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)
