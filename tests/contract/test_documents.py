"""Documents agree with the code: commands exist, links work, generated tables are fresh."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
from google.protobuf import descriptor_pool
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.gateway.envelope import PUBLIC_FOLDER, PUBLIC_PATHS
from tests.contract import configuration_page, metrics_page, results_pages
from tests.contract.repository import ROOT, documents, fenced, modules, prose
from tests.contract.written_page import WrittenPage

README = ROOT / "README.md"
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"")
SHELL = ("", "sh", "bash", "console")

every_document = pytest.mark.parametrize(
    "page", documents(), ids=lambda page: page.relative_to(ROOT).as_posix()
)


@functools.cache
def commands() -> tuple[tuple[str, ...], ...]:
    """Every command in the documents, in fences or inline, split into words."""
    lines: list[str] = []
    for page in documents():
        for body in fenced(page, *SHELL):
            lines += body.replace("\\\n", " ").splitlines()
        lines += INLINE.findall(prose(page))
        text = page.read_text(encoding="utf-8")
        lines += [line for line in text.splitlines() if line.startswith("    ")]
    parsed = (split_command(line) for line in lines)
    return tuple(dict.fromkeys(command for command in parsed if command))


def split_command(line: str) -> tuple[str, ...]:
    """The words of a shell line without prompt and comment; empty if it cannot be parsed."""
    try:
        return tuple(shlex.split(line.strip().removeprefix("$ "), comments=True))
    except ValueError:
        return ()


def find_commands(*start: str) -> list[tuple[str, ...]]:
    return [command for command in commands() if command[: len(start)] == start]


def test_documented_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    documented = {word for command in find_commands("make") for word in command[1:2]}
    assert {"demo", "test"} <= documented
    assert documented <= targets


def test_documented_modules_exist() -> None:
    names = {module.name for module in modules()}
    known = names | {f"{name}.__main__" for name in names} | {"venv", "pip", "pytest", "mypy"}
    runs = [*find_commands("python", "-m"), *find_commands("python3", "-m")]
    assert runs
    assert {command[2] for command in runs} <= known


def help_text(*arguments: str) -> str:
    """The output of `draftloop … --help`, wide and without colours."""
    wide = {"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"}
    run = CliRunner().invoke(app, [*arguments, "--help"], env=wide, terminal_width=300)
    assert run.exit_code == 0, f"{arguments}: {run.output}"
    return run.output


def test_documented_subcommands_and_flags_exist() -> None:
    """Every `draftloop …` has a subcommand and flags that its help names."""
    uses: dict[tuple[str, ...], set[str]] = {}
    for command in find_commands("draftloop"):
        if len(command) == 1 or not command[1].isalpha():
            continue
        size = 3 if command[1] in ("serve", "keys") else 2
        flags = {word.partition("=")[0] for word in command[size:] if word.startswith("--")}
        uses.setdefault(command[1:size], set()).update(flags - {"--help"})
    assert {("up",), ("generate",), ("info",), ("serve", "verifier")} <= set(uses)
    top = help_text()
    for arguments, flags in uses.items():
        assert re.search(rf"\b{arguments[0]}\b", top)
        missing = flags - known_flags(arguments)
        assert not missing, f"draftloop {' '.join(arguments)}: {missing}"


def known_flags(arguments: tuple[str, ...]) -> set[str]:
    """The flags of a subcommand; those of a role from its settings, as its help loads torch."""
    if arguments[0] != "serve":
        return set(re.findall(r"--[a-z][\w-]*", help_text(*arguments)))
    if arguments in (("serve",), ("serve", "ROLE")):
        return set()
    fields = configuration_page.settings_of(configuration_page.ROLES[arguments[1]]).model_fields
    return {f"--{name.replace('_', '-')}" for name in fields}


def test_flags_in_the_migration_page_exist() -> None:
    page = prose(ROOT / "docs" / "coming_from.md")
    cells = [line.split("|")[-2] for line in page.splitlines() if line.startswith("| ")]
    flags = {flag for cell in cells for flag in re.findall(r"--[a-z][\w-]*", cell)}
    roles = (("serve", role) for role in ("orchestrator", "drafter", "verifier"))
    known = set().union(known_flags(("up",)), *map(known_flags, roles))
    negated = {flag.replace("--", "--no-", 1) for flag in known}
    assert flags - {"--server"} <= known | negated and len(flags) > 20


def test_documented_rpc_methods_exist() -> None:
    """`draftloop.v1.Generation/Generate` and similar names in the README are in the protos."""
    pool = descriptor_pool.Default()
    for file in (ROOT / "protos").glob("*.proto"):
        importlib.import_module(f"protos.{file.stem}_pb2")
    text = README.read_text(encoding="utf-8")
    calls = re.findall(r"\b(draftloop\.v1\.\w+)/(\w+)", text)
    assert calls
    for service, method in calls:
        assert method in pool.FindServiceByName(service).methods_by_name


@every_document
def test_python_examples_import_existing_names(page: Path) -> None:
    for body in fenced(page, "python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as common forges generate them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links_are_valid(page: Path) -> None:
    broken = []
    for pair in LINK.findall(prose(page)):
        link = pair[0] or pair[1]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            broken.append(link)
    assert not broken


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert not [page.name for page in folder.glob("0*.md") if f"({page.name})" not in index]


def test_routes_without_a_key_are_documented() -> None:
    text = prose(ROOT / "docs" / "security.md")
    (passage,) = (part for part in text.split("\n\n") if part.startswith("No key is needed"))
    assert {*PUBLIC_PATHS, f"{PUBLIC_FOLDER}/*"} <= {*INLINE.findall(passage)}


@pytest.mark.parametrize(
    "page",
    [configuration_page.PAGE, metrics_page.PAGE, *results_pages.PAGES],
    ids=lambda page: page.path.name,
)
def test_generated_pages_are_up_to_date(page: WrittenPage) -> None:
    """`make docs` rewrites them."""
    assert page.text == page.fresh


def test_times_in_settings_name_their_unit() -> None:
    for package in configuration_page.ROLES.values():
        for name, field in configuration_page.settings_of(package).model_fields.items():
            if field.annotation in (int, float) and re.search("timeout|period|interval", name):
                assert name.endswith(("_s", "_ms")), name
