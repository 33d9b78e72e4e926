"""Explains failed TLS connections from the messages of gRPC's core, and what to do."""

from __future__ import annotations

# In the core's message whenever it could not connect to an address.
NO_CONNECTION = "failed to connect"
EXPIRED, NOT_YET_VALID = OUTDATED = "certificate has expired", "certificate is not yet valid"
# Substrings of its messages, in order of precedence, and what each means about the server.
TROUBLE = {
    EXPIRED: "its certificate has expired; renew it there",
    NOT_YET_VALID: "its certificate is not valid yet; compare the clocks",
    "Hostname Verification Check failed": "its certificate does not name this host; ask for one "
    "that it names, or have it name this one",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of no authority in {ca}",
    "WRONG_VERSION_NUMBER": "it speaks no TLS; ask without {ca}",
    "Socket closed": "it hung up at once, as one does that wants TLS ({ca}), or to be shown "
    "another certificate",
}
TROUBLE["Connection reset"] = TROUBLE["Socket closed"]


def tls_trouble(message: str, ca: str) -> str:
    """What is wrong with TLS between the two; empty if the problem is something else.

    `ca` is the name of the setting that turns on TLS for the connection.
    """
    if NO_CONNECTION not in message:
        return ""
    found = (words.format(ca=ca) for sign, words in TROUBLE.items() if sign in message)
    return next(found, "")


def is_outdated(message: str) -> bool:
    """Whether the server answered, but with a certificate that is not valid now."""
    return NO_CONNECTION in message and any(sign in message for sign in OUTDATED)


def no_connection(address: str, message: str, ca: str) -> str:
    """The TLS problem as a sentence for the caller of `address`; empty if there is none."""
    trouble = tls_trouble(message, ca)
    return f"no connection to {address}: {trouble}" if trouble else ""
