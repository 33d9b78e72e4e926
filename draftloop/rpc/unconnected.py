"""Why two ends of a connection did not get on, by what gRPC's core says, and what to do."""

from __future__ import annotations

# What the core says of an address that it could not connect to, whatever the reason.
NO_CONNECTION = "failed to connect"
# Signs in its words, in this order, and what each of them means of the one that was asked.
TROUBLE = {
    "certificate has expired": "its certificate has expired; renew it there",
    "certificate is not yet valid": "its certificate is not valid yet; compare the clocks",
    "Hostname Verification Check failed": "its certificate does not name this host; ask for one "
    "that it names, or have it name this one",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of no authority in {ca}",
    "WRONG_VERSION_NUMBER": "it speaks no TLS; ask without {ca}",
    "Socket closed": "it hung up at once, as one does that wants TLS ({ca}), or to be shown "
    "another certificate",
}
TROUBLE["Connection reset"] = TROUBLE["Socket closed"]


def tls_trouble(said: str, ca: str) -> str:
    """What is wrong between the two ends' TLS; empty where it is something else.

    `ca` is what the setting is called that makes the connection one of TLS.
    """
    if NO_CONNECTION not in said:
        return ""
    found = (words.format(ca=ca) for sign, words in TROUBLE.items() if sign in said)
    return next(found, "")


def no_connection(address: str, said: str, ca: str) -> str:
    """The same as a sentence for whoever asked the one at `address`."""
    trouble = tls_trouble(said, ca)
    return f"no connection to {address}: {trouble}" if trouble else ""
