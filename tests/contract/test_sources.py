"""A token's source has one name for people, wherever they read it."""

from __future__ import annotations

import re

from draftloop.tree import SOURCE_NAMES, TokenSource
from tests.contract.repository import ROOT

SCRIPT = ROOT / "orchestrator" / "gateway" / "playground" / "sources.js"
TARGET = re.compile(r'const TARGET = "(\w+)"')
ENTRY = re.compile(r'\[("?\w+"?), \{ letter: "\w", name: "([^"]+)"')


def test_every_source_has_a_name() -> None:
    assert set(SOURCE_NAMES) == set(TokenSource)


def test_the_playground_has_the_same_names() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    target = TARGET.findall(text)
    names = {key.strip('"').replace("TARGET", *target): name for key, name in ENTRY.findall(text)}
    assert names == {source.name.lower(): name for source, name in SOURCE_NAMES.items()}
