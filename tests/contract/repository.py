"""The repository as data: its files, modules, and what each module imports."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB_MARK = "_pb2"
LIBRARIES = ("draftloop", "phrase_store", "protos")
SERVICES = ("drafter_service", "verifier_service", "orchestrator")
TOOLS = ("models", "benchmarks", "tests", "examples")
PACKAGES = (*LIBRARIES, *SERVICES, *TOOLS)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Module:
    """A Python file of this repository, with its text."""

    name: str
    file: Path
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]

    @property
    def path(self) -> str:
        """The file relative to the repository's root, with forward slashes."""
        return self.file.relative_to(ROOT).as_posix()

    def under(self, *folders: str) -> bool:
        """Whether the file lies in one of these folders, given relative to the root."""
        return any(self.path.startswith(folder + "/") for folder in folders)

    @functools.cached_property
    def packages(self) -> set[str]:
        """Top-level packages that this module imports when it runs."""
        return {name.partition(".")[0] for name in self.imports}

    @functools.cached_property
    def imports(self) -> list[str]:
        """Dotted names that this module imports when it runs, names taken from modules included."""
        imported: list[str] = []
        for node in _running(self.tree):
            if isinstance(node, ast.Import):
                imported += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                imported += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        return imported

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        if self.file.name != "__init__.py":
            parts.pop()
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those under `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            followed: list[ast.AST] = [*child.orelse]
        else:
            followed = [child]
        for each in followed:
            yield from _running(each)


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file that is tracked, or would be if added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):  # a copy without git history
        return tuple(sorted(_walk(ROOT)))
    paths = {ROOT / name for name in listed.stdout.split("\0") if name}
    return tuple(sorted(file for file in paths if file.is_file()))


def _walk(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_file():
            yield entry
        elif not entry.name.startswith(".") and not entry.name.endswith(
            ("__pycache__", "egg-info")
        ):
            yield from _walk(entry)


@functools.cache
def modules() -> tuple[Module, ...]:
    """Every Python file of this repository except generated stubs."""
    sources = [file for file in files() if file.suffix == ".py" and STUB_MARK not in file.name]
    return tuple(
        Module(_dotted(file), file, file.read_text(encoding="utf-8"))
        for file in sources
        if file.relative_to(ROOT).parts[0] in PACKAGES
    )


def _dotted(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def documents() -> list[Path]:
    """Every Markdown page."""
    return [file for file in files() if file.suffix == ".md"]


def fenced(page: Path, *languages: str) -> list[str]:
    """The contents of fences with these languages, "" for fences that name none."""
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    return [body for language, body in blocks if language in languages]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
