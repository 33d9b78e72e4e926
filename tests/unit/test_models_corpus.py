"""The split of the corpus and the prompts depend only on names and texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import corpus
from models.corpus import Document, is_held_out, is_table, select, split
from models.prompts import choose, cuts, ends_inside_code, wanted_length

CODE = "import os\n\n\ndef body(x):\n" + "    y = x + 1\n    if y:\n        x = y\n" * 60


def word_count(text: str) -> int:
    return max(1, len(text.split()))


def test_split_depends_on_the_name_alone() -> None:
    documents = [Document(f"package/module{n}.py", "x = 1") for n in range(4000)]
    training, held_out = split(documents)
    assert sorted(training + held_out) == sorted(documents)
    assert 0.04 < len(held_out) / len(documents) < 0.06
    assert all(is_held_out(document.name) for document in held_out)
    # Guards the committed list: another hash or share would move held-out files into training.
    assert is_held_out("sched.py") and not is_held_out("json/decoder.py")


def test_repeated_and_empty_files_and_tables_are_dropped() -> None:
    documents = [
        Document("a.py", "def f(): pass"),
        Document("b.py", "def f(): pass"),
        Document("c.py", " \n"),
        Document("encodings/cp1.py", "def g(): pass"),
    ]
    assert [document.name for document in select(documents)] == ["a.py"]


def test_file_of_numbers_is_a_table() -> None:
    assert is_table("numbers.py", "x = [" + "0x1234, " * 1000 + "]")
    assert not is_table("code.py", CODE)


def test_prompts_are_verbatim_and_do_not_overlap() -> None:
    document = Document("code.py", CODE * 8)
    prompts = list(cuts(document, word_count))
    assert len(prompts) > 1
    position = 0
    for prompt in prompts:
        position = document.text.index(prompt.prompt + prompt.reference, position) + 1
        assert 150 <= word_count(prompt.prompt) <= 400
        assert word_count(prompt.reference) >= 200
        assert prompt.prompt.endswith("\n")


def test_short_file_gives_no_prompt() -> None:
    assert list(cuts(Document("short.py", "import os\nx = 1\n"), word_count)) == []


def test_cuts_avoid_strings_and_comments() -> None:
    assert ends_inside_code(["def f():\n"], "    return 1\n")
    assert not ends_inside_code(['def f():\n    """Open\n'], "    string\n")
    assert not ends_inside_code(["def f():\n", "    # why\n"], "    return 1\n")
    assert not ends_inside_code(["x = 1\n"], "y = 2\n")


def test_prompts_are_taken_from_every_file_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("models.prompts.DEMO", ("file2.py",))
    documents = [Document(f"file{n}.py", f"# {n}\n" + CODE * 8) for n in range(3)]
    chosen = choose(documents, word_count, wanted=4)
    assert [prompt.file for prompt in chosen] == ["file2.py", "file0.py", "file1.py", "file0.py"]


def test_prompt_lengths_vary_within_their_bounds() -> None:
    lengths = {wanted_length("a.py", number) for number in range(50)}
    assert len(lengths) > 20 and min(lengths) >= 150 and max(lengths) < 400


@pytest.fixture
def library_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library without files, and a list with two held-out files."""
    file = tmp_path / "held_out.txt"
    file.write_text("sched.py\ntoken.py\n")
    monkeypatch.setattr("models.corpus.HELD_OUT_LIST", file)
    monkeypatch.setenv(corpus.SOURCES, str(tmp_path / "library"))
    return tmp_path / "library"


def listed_files(library: Path) -> str:
    return library.with_name("held_out.txt").read_text()


def test_folder_without_sources_keeps_the_held_out_list(library_folder: Path) -> None:
    """A mistyped folder used to empty the committed list without an error."""
    with pytest.raises(FileNotFoundError, match="library has no Python sources: STANDARD_LIBRARY"):
        corpus.main()
    assert listed_files(library_folder) == "sched.py\ntoken.py\n"


def test_listed_files_are_held_out(library_folder: Path) -> None:
    """Held-out files of another Python version may be known from training under other names."""
    library_folder.mkdir()
    for name in ("sched.py", "os.py", "opcode.py"):
        (library_folder / name).write_text(f"# {name}\n{CODE}")
    assert is_held_out("opcode.py") and not is_held_out("os.py")
    with pytest.raises(FileNotFoundError, match=r"lacks 1 of 2 held-out files, such as token\.py"):
        corpus.load()
    (library_folder / "token.py").write_text(CODE)
    training, held_out = corpus.load()
    assert [document.name for document in training] == ["os.py"]
    assert [document.name for document in held_out] == ["sched.py", "token.py"]
    corpus.main()  # for a user's own models
    assert listed_files(library_folder) == "opcode.py\nsched.py\ntoken.py\n"
