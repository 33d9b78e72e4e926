"""Rules of form that no linter checks."""

from __future__ import annotations

import ast
import re

from hypothesis import settings

from tests.contract.repository import ROOT, Module, files, modules

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_MODELS_BYTES, MAX_MODEL_FILE_BYTES = 60_000_000, 16 << 20
# Home folders, as they slip in from a developer's machine.
PERSONAL_PATH = re.compile(r"(?<![\w.])(?:/(?:home|Users)/[\w.-]+/|/root/\w|[A-Z]:\\Users\\)")
QUOTED_SOURCES = ("models/held_out_prompts.jsonl", "models/verifier/", "models/drafter")


def test_files_are_short() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in modules()}
    assert not {path: length for path, length in lengths.items() if length > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    assert not [
        f"{module.path}: {node.name} has {length} lines"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def is_allowed_to_print(module: Module) -> bool:
    return module.under("models", "benchmarks", "examples") or module.path.startswith(
        "orchestrator/cli"
    )


def test_only_the_command_line_prints() -> None:
    assert not [
        f"{module.path}:{node.lineno}"
        for module in modules()
        if not is_allowed_to_print(module)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


def test_no_global_statements() -> None:
    assert not [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]


def test_bundled_models_stay_small() -> None:
    sizes = [file.stat().st_size for file in files() if (ROOT / "models") in file.parents]
    assert sum(sizes) < MAX_MODELS_BYTES and max(sizes) <= MAX_MODEL_FILE_BYTES


def test_no_machine_specific_paths() -> None:
    offenders = []
    for file in files():
        path = file.relative_to(ROOT).as_posix()
        if path.startswith(QUOTED_SOURCES):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if PERSONAL_PATH.search(text) or (len(ROOT.parts) > 2 and str(ROOT) in text):
            offenders.append(path)
    assert not offenders


def test_hypothesis_has_no_deadline() -> None:
    """A busy machine would fail a test of correct code."""
    assert settings.default is not None and settings.default.deadline is None
