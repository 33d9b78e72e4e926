"""Generates the tables of settings in docs/configuration.md from the code.

`python -m tests.contract.configuration_page` rewrites them; a test checks that they are fresh.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from draftloop.config import ServiceSettings
from tests.contract.repository import ROOT
from tests.contract.written_page import WrittenPage

ROLES = {
    "orchestrator": "orchestrator",
    "drafter": "drafter_service",
    "verifier": "verifier_service",
}


def settings_of(package: str) -> type[ServiceSettings]:
    """The settings class that the role's `config` module defines."""
    module = importlib.import_module(f"{package}.config")
    return next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, ServiceSettings)
        and kind.__module__ == module.__name__
    )


def stack_settings() -> type[BaseModel]:
    """The settings of `draftloop up`."""
    kind: type[BaseModel] = importlib.import_module("orchestrator.stack_config").StackConfig
    return kind


def shown_default(field: FieldInfo) -> str:
    """The default as the page shows it."""
    if field.is_required():
        return "required"
    default: Any = field.get_default(call_default_factory=True)
    if default is None:
        return "none"
    if isinstance(default, Path):
        in_repository = default.is_relative_to(ROOT)
        default = default.relative_to(ROOT).as_posix() if in_repository else default
    if isinstance(default, str | tuple | list) and not default:
        return "empty"
    return f"`{default}`"


def limits(field: FieldInfo) -> str:
    """The bounds and choices of the field."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    parts = [
        f"{word} {getattr(rule, name)}"
        for rule in field.metadata
        for name, word in words.items()
        if getattr(rule, name, None) is not None
    ]
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in choices))
    return ", ".join(parts)


def described(field: FieldInfo) -> str:
    """The field's description, bounds and choices."""
    return "; ".join(part for part in (field.description or "", limits(field)) if part)


def role_table(role: str, kind: type[ServiceSettings]) -> str:
    """A table with one row per setting: flag, environment variable, default, meaning."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    rows = [
        f"### `draftloop serve {role}`\n",
        "| flag | environment | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in kind.model_fields.items():
        flag = "--" + name.replace("_", "-")
        variable = prefix + name.upper()
        rows.append(f"| `{flag}` | `{variable}` | {shown_default(field)} | {described(field)} |")
    return "\n".join(rows)


def stack_table(kind: type[BaseModel]) -> str:
    """A table with one row per key of the TOML file."""
    rows = ["### `draftloop up --config FILE`\n", "| key | default | meaning |", "|---|---|---|"]
    for name, field in kind.model_fields.items():
        rows.append(f"| `{name}` | {shown_default(field)} | {described(field)} |")
    return "\n".join(rows)


def tables() -> list[str]:
    """One table for `draftloop up` and one per role."""
    roles = [role_table(role, settings_of(package)) for role, package in ROLES.items()]
    return [stack_table(stack_settings()), *roles]


PAGE = WrittenPage(ROOT / "docs" / "configuration.md", {"settings": tables})

if __name__ == "__main__":
    PAGE.write()
