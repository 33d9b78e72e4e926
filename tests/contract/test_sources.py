"""Sources, strategies and draft ends: each has one name, the same in all places."""

from __future__ import annotations

import re

import pytest

from draftloop.speculation import STRATEGIES
from draftloop.tree import SOURCE_NAMES, DraftEnd, TokenSource
from tests.contract.repository import ROOT

SCRIPT = ROOT / "orchestrator" / "gateway" / "playground" / "sources.js"
TARGET = re.compile(r'const TARGET = "(\w+)"')
ENTRY = re.compile(r'\[("?\w+"?), \{ letter: "\w", name: "([^"]+)"')
MAP = re.compile(r"^export const (\w+) = new Map\(\[\n(.*?)^\]\);", re.MULTILINE | re.DOTALL)
KEY = re.compile(r'^  \["(\w+)"', re.MULTILINE)
ROW = re.compile(r"^\| \[?`(\w+)`", re.MULTILINE)


def test_every_source_has_a_name() -> None:
    assert set(SOURCE_NAMES) == set(TokenSource)


def test_playground_uses_the_same_source_names() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    target = TARGET.findall(text)
    names = {key.strip('"').replace("TARGET", *target): name for key, name in ENTRY.findall(text)}
    assert names == {source.name.lower(): name for source, name in SOURCE_NAMES.items()}


def test_playground_knows_every_strategy_and_draft_end() -> None:
    maps = dict(MAP.findall(SCRIPT.read_text(encoding="utf-8")))
    assert set(KEY.findall(maps["STRATEGIES"])) == set(STRATEGIES)
    ends = {end.name.lower() for end in DraftEnd if end is not DraftEnd.NONE}
    assert set(KEY.findall(maps["DRAFT_ENDS"])) == ends


@pytest.mark.parametrize(
    ("page", "head"),
    [("README.md", "| `--strategy` | drafts |"), ("docs/strategies.md", "| strategy | where ")],
)
def test_documented_tables_list_every_strategy(page: str, head: str) -> None:
    table = (ROOT / page).read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
    assert sorted(ROW.findall(table)) == sorted(STRATEGIES)
