"""Training records with repeated passages and changed versions of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("torch")

from tokenizers import Tokenizer  # noqa: E402

from draftloop.config import bundled_model  # noqa: E402
from models import revise  # noqa: E402
from models.revise import COMMENTS, WORDS, Source, revised  # noqa: E402
from models.tokenizer import END_OF_TEXT_ID  # noqa: E402


def test_second_version_mostly_renames_one_name() -> None:
    passage = "def work(item):\n    return item.work(item)\n"
    changed = 0
    for seed in range(40):
        comment, _, text = revised(passage, np.random.default_rng(seed)).partition("\n")
        assert comment.startswith(("#", '"""'))
        names = {old for old in ("work", "item") if old not in re.findall(r"\w+", text)}
        if text.count("\n") == 2 and text != passage:
            assert len(names) == 1 and "return" in text and "def" in text
            changed += 1
        assert text == passage or names
        assert revised(passage, np.random.default_rng(seed)).partition("\n")[2] == text
    assert changed > 25


def test_version_comments_differ_from_the_benchmarks() -> None:
    # The comments in training records differ from those in the benchmark's prompts.
    assert not any("renamed to" in comment for comment in COMMENTS)
    assert "new" not in WORDS


def new_source(lines: str) -> Source:
    tokenizer = Tokenizer.from_file(str(bundled_model("verifier") / "tokenizer.json"))
    return Source(tokenizer, [tokenizer.encode(lines).ids], ["# of something else\n"], ["pass\n"])


def test_record_repeats_its_passage_and_fills_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revise, "SLIPS", 0.0)
    monkeypatch.setattr(revise, "BEGUN_BEFORE", 0.0)
    monkeypatch.setattr(revise, "LENGTHENED", 0.0)
    lines = "".join(f"def function_{n}(value):\n    return value + {n}\n" for n in range(400))
    source = new_source(lines)
    record = source.record(source.texts[0], 512, np.random.default_rng(0))
    assert record is not None and len(record) == 512 and record[0] == END_OF_TEXT_ID
    first, *again = source.tokenizer.decode(record.tolist()).split("\n\n# ")
    numbers = re.findall(r"\+ (\d+)", first)
    assert len(numbers) >= 2 and again
    for version in again[:-1]:  # the last one is truncated
        assert re.findall(r"\+ (\d+)", version) == numbers
    assert source.record([5] * 600, 512, np.random.default_rng(0)) is None


def test_some_records_begin_early_and_some_versions_digress() -> None:
    lines = "".join(f"def function_{n}(value):\n    return value + {n}\n" for n in range(4000))
    source, draw = new_source(lines), np.random.default_rng(1)
    records = [source.record(source.texts[0], 1024, draw) for _ in range(60)]
    written = [record for record in records if record is not None]
    at_start = sum(record[0] == END_OF_TEXT_ID for record in written)
    assert 10 < at_start < len(written) - 10
    texts = [source.tokenizer.decode(record.tolist()) for record in written]
    assert sum("# of something else" in text for text in texts) > 20
    assert sum("pass\n" in text for text in texts) > 10
    passage = "".join(f"line {n}\n" for n in range(400))
    kept = [line for line in source.version(passage, draw).splitlines() if line.startswith("line")]
    assert kept == sorted(kept, key=lambda line: int(line.split()[1]))
