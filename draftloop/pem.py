"""Checks that PEM files of certificates and keys can be used; errors name the setting.

Health probes check their files too, so nothing here takes long to import.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from draftloop.errors import StartupFailure


def require_client_files(
    settings: str, *, ca: Path | None, certificate: Path | None = None, key: Path | None = None
) -> None:
    """Checks the CA that a client trusts, and its own certificate and key.

    gRPC would end the process for unusable ones. `settings` is the prefix of the settings' names;
    `ca` is None if the system's authorities are trusted. Raises StartupFailure naming the setting
    whose file is missing or cannot be used.
    """
    if ca is not None:
        require_authority(f"{settings}_ca", ca)
    names = f"{settings}_certificate", f"{settings}_key"
    if certificate is not None and key is not None:
        require_pair(names[0], certificate, names[1], key)
    elif certificate is not None or key is not None:
        given, missing = names if key is None else reversed(names)
        raise StartupFailure(f"{missing}: must be given together with {given}; got none")


def require_pair(certificate_setting: str, certificate: Path, key_setting: str, key: Path) -> None:
    """Raises StartupFailure unless the files are a certificate and its key."""
    for setting, file in ((certificate_setting, certificate), (key_setting, key)):
        _require_file(setting, file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (ssl.SSLError, ValueError) as error:
        raise StartupFailure(
            f"{certificate_setting}, {key_setting}: {certificate} and {key} must be a PEM "
            f"certificate and its key: {error}"
        ) from None


def require_authority(setting: str, file: Path) -> None:
    """Raises StartupFailure unless the file holds certificates."""
    _require_file(setting, file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError as error:
        raise StartupFailure(f"{setting}: {file} must hold PEM certificates: {error}") from None


def no_password() -> str:
    """Password callback that raises ValueError instead of prompting on the terminal."""
    raise ValueError("the key is encrypted; give one without a passphrase")


def _require_file(setting: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise StartupFailure(f"{setting}: {file} cannot be read: {error.strerror}") from None
