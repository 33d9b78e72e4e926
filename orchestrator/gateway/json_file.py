"""Reads JSON files beside a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftloop.errors import StartupFailure


def read_json_object(file: Path) -> dict[str, Any]:
    """The object in the file; empty if there is none. Raises StartupFailure for a broken file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise StartupFailure(f"tokenizer: {file} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}
