"""The corpus split and the prompts are pure functions of names and texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import corpus
from models.corpus import Document, is_held_out, is_table, select, split
from models.prompts import choose, cuts, ends_inside_code, wanted_length

CODE = "import os\n\n\ndef body(x):\n" + "    y = x + 1\n    if y:\n        x = y\n" * 60


def words(text: str) -> int:
    return max(1, len(text.split()))


def test_the_split_depends_on_the_name_alone() -> None:
    documents = [Document(f"package/module{n}.py", "x = 1") for n in range(4000)]
    training, held_out = split(documents)
    assert sorted(training + held_out) == sorted(documents)
    assert 0.04 < len(held_out) / len(documents) < 0.06
    assert all(is_held_out(document.name) for document in held_out)
    # Guards the committed list: a new hash or share would let held-out files into training.
    assert is_held_out("sched.py") and not is_held_out("json/decoder.py")


def test_repeated_and_empty_files_and_tables_are_dropped() -> None:
    documents = [
        Document("a.py", "def f(): pass"),
        Document("b.py", "def f(): pass"),
        Document("c.py", " \n"),
        Document("encodings/cp1.py", "def g(): pass"),
    ]
    assert [document.name for document in select(documents)] == ["a.py"]


def test_a_file_of_numbers_is_a_table() -> None:
    assert is_table("numbers.py", "x = [" + "0x1234, " * 1000 + "]")
    assert not is_table("code.py", CODE)


def test_prompts_are_verbatim_and_do_not_overlap() -> None:
    document = Document("code.py", CODE * 8)
    prompts = list(cuts(document, words))
    assert len(prompts) > 1
    position = 0
    for prompt in prompts:
        position = document.text.index(prompt.prompt + prompt.reference, position) + 1
        assert 150 <= words(prompt.prompt) <= 400
        assert words(prompt.reference) >= 200
        assert prompt.prompt.endswith("\n")


def test_a_short_file_gives_no_prompt() -> None:
    assert list(cuts(Document("short.py", "import os\nx = 1\n"), words)) == []


def test_cuts_stay_out_of_strings_and_comments() -> None:
    assert ends_inside_code(["def f():\n"], "    return 1\n")
    assert not ends_inside_code(['def f():\n    """Open\n'], "    string\n")
    assert not ends_inside_code(["def f():\n", "    # why\n"], "    return 1\n")
    assert not ends_inside_code(["x = 1\n"], "y = 2\n")


def test_every_file_gives_one_prompt_before_any_gives_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("models.prompts.DEMO", ("file2.py",))
    documents = [Document(f"file{n}.py", f"# {n}\n" + CODE * 8) for n in range(3)]
    chosen = choose(documents, words, wanted=4)
    assert [prompt.file for prompt in chosen] == ["file2.py", "file0.py", "file1.py", "file0.py"]


def test_prompt_lengths_vary_within_their_bounds() -> None:
    lengths = {wanted_length("a.py", number) for number in range(50)}
    assert len(lengths) > 20 and min(lengths) >= 150 and max(lengths) < 400


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library without files, and a list of two held-out ones."""
    file = tmp_path / "held_out.txt"
    file.write_text("sched.py\ntoken.py\n")
    monkeypatch.setattr("models.corpus.HELD_OUT_LIST", file)
    monkeypatch.setenv(corpus.SOURCES, str(tmp_path / "library"))
    return tmp_path / "library"


def listed(library: Path) -> str:
    return library.with_name("held_out.txt").read_text()


def test_a_folder_without_sources_empties_no_list(library: Path) -> None:
    """Once a mistyped folder left the committed list of held-out files empty, without an error."""
    with pytest.raises(FileNotFoundError, match="library has no Python sources: STANDARD_LIBRARY"):
        corpus.main()
    assert listed(library) == "sched.py\ntoken.py\n"


def test_what_is_held_out_is_what_is_listed(library: Path) -> None:
    """Files with held-out names that are not listed belong to neither part.

    In another version of Python, a file that was trained on may have such a name.
    """
    library.mkdir()
    for name in ("sched.py", "os.py", "opcode.py"):
        (library / name).write_text(f"# {name}\n{CODE}")
    assert is_held_out("opcode.py") and not is_held_out("os.py")
    with pytest.raises(FileNotFoundError, match=r"lacks 1 of 2 held-out files, such as token\.py"):
        corpus.load()
    (library / "token.py").write_text(CODE)
    training, held_out = corpus.load()
    assert [document.name for document in training] == ["os.py"]
    assert [document.name for document in held_out] == ["sched.py", "token.py"]
    corpus.main()  # for users who train their own models
    assert listed(library) == "opcode.py\nsched.py\ntoken.py\n"
