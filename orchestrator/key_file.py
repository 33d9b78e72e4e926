"""The file of API keys: who may call, for which tenant, and how much. It holds no key itself.

A key is 32 random bytes, so its plain SHA-256 reveals nothing. Salts and slow hashes protect
against lists of likely passwords, which do not exist here; so the check takes only microseconds.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from draftloop.config import broken_rules
from draftloop.errors import StartupFailure
from draftloop.request import TENANT_RULE, is_tenant

KEY_PREFIX = "dl-"  # so that people and secret scanners recognize a key
KEY_BYTES = 32
# Position in an error message that may quote a value.
ERROR_POSITION = re.compile(r"\(at [^()]*\)$")


class KeyEntry(BaseModel):
    """One key. Limits that are None do not apply."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="who it is in logs")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="hash of the key, in hexadecimal")
    tenant: str = Field(description="whose phrases its requests read and write")
    requests_per_minute: int | None = Field(None, ge=1, description="most requests begun")
    concurrent_requests: int | None = Field(None, ge=1, description="most requests running")
    max_tokens: int | None = Field(None, ge=1, description="most tokens of one request")

    @field_validator("sha256")
    @classmethod
    def _check_hash(cls, sha256: str) -> str:
        if sha256 == hash_of(""):  # for example of an unset shell variable
            raise ValueError("must be the hash of a key, not that of an empty text")
        return sha256

    @field_validator("tenant")
    @classmethod
    def _check_tenant(cls, tenant: str) -> str:
        if not is_tenant(tenant):
            raise ValueError(TENANT_RULE)
        return tenant

    def toml(self) -> str:
        """The entry as TOML text."""
        values = self.model_dump(exclude_none=True)
        lines = [f"{name} = {_toml_value(value)}" for name, value in values.items()]
        return "\n".join(["[[keys]]", *lines, ""])


class KeyFile(BaseModel):
    """All entries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[KeyEntry, ...] = ()

    @field_validator("keys")
    @classmethod
    def _check_unique(cls, keys: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        names = [key.name for key in keys]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"names must differ: {', '.join(duplicates)}")
        if len({key.sha256 for key in keys}) < len(keys):
            raise ValueError("hashes must differ: one key cannot be two")
        return keys

    @classmethod
    def read(cls, file: Path) -> Self:
        """Raises StartupFailure naming what is wrong, but never a value: it might be a key."""
        try:
            return cls.model_validate(tomllib.loads(file.read_text(encoding="utf-8-sig")))
        except ValidationError as error:
            problems = "; ".join(f"{name}: {rule}" for name, rule, _ in broken_rules(error))
            raise StartupFailure(f"api_keys: {file}: {problems}") from None
        except OSError as error:
            raise StartupFailure(f"api_keys: {file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise StartupFailure(f"api_keys: {file} is not a TOML file, which is UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            match = ERROR_POSITION.search(str(error))
            position = f" {match[0]}" if match else ""
            raise StartupFailure(f"api_keys: {file} is not a TOML file{position}") from None


def hash_of(key: str) -> str:
    """The SHA-256 of a key, in hexadecimal, as stored in the file."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    """A new random key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def _toml_value(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
