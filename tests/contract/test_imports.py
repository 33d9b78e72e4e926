"""Import rules: which package may import which, and where heavy libraries must not be."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.contract.repository import PACKAGES, ROOT, SERVICES, TOOLS, Module, modules

HEAVY = {"torch", "transformers", "safetensors"}
COMPILERS = {"llvmlite", "numba"}
HEAVY_FOLDERS = ("draftloop/runtime", "drafter_service", "verifier_service", *TOOLS)
GRPC = {"grpc", "google", "grpc_health", "grpc_reflection", "protos"}
STUB_FILES = {"servicer.py", "clients.py"}
STUB_FOLDERS = ("draftloop/rpc", "tests", "benchmarks")
# The modules of the runtime that compiled loops need everywhere; the others need a model.
LOOPS = {"draftloop.runtime.calibrating", "draftloop.runtime.compiling"}
LIGHT = {"draftloop", "prometheus_client", "pydantic", "pydantic_settings", "structlog"}
STANDARD = set(sys.stdlib_module_names)
TRACES = "draftloop/rpc/otlp.py"


def breaches(
    forbidden: Callable[[Module], set[str]], within: Callable[[Module], bool]
) -> list[str]:
    """`module: package` for every import of a forbidden package in the selected modules."""
    return [
        f"{module.path}: {package}"
        for module in modules()
        if within(module)
        for package in sorted(module.packages & forbidden(module))
    ]


def is_product(module: Module) -> bool:
    return module.package not in TOOLS


def test_services_and_libraries_do_not_import_each_other() -> None:
    def forbidden(module: Module) -> set[str]:
        shared = {"phrase_store"} if module.package == "draftloop" else set()
        return {*SERVICES, *TOOLS, *shared} - {module.package}

    assert not breaches(forbidden, is_product)


def test_verifier_does_not_import_the_phrase_store() -> None:
    """A verifier has no way to Redis, not even indirectly: only `phrase_store` has one."""
    assert not breaches(lambda _: {"phrase_store"}, lambda m: m.under("verifier_service"))


def test_torch_is_imported_only_where_models_live() -> None:
    assert not breaches(lambda _: HEAVY, lambda module: not module.under(*HEAVY_FOLDERS))


def test_runtime_is_imported_only_where_models_live() -> None:
    graph = import_graph()
    light = [m for m in modules() if is_product(m) and not m.under(*HEAVY_FOLDERS)]
    assert {name for m in light for name in graph[m.name] if "draftloop.runtime" in name} == LOOPS


def test_compilers_are_imported_only_by_models_and_phrases() -> None:
    folders = (*HEAVY_FOLDERS, "phrase_store")
    assert not breaches(lambda _: COMPILERS, lambda module: not module.under(*folders))


def test_redis_is_imported_only_in_the_phrase_store() -> None:
    folders = ("phrase_store", "tests", "benchmarks")
    assert not breaches(lambda _: {"redis"}, lambda module: not module.under(*folders))


def test_opentelemetry_is_imported_only_in_the_traces_module() -> None:
    product = (module for module in modules() if is_product(module))
    assert [m.path for m in product if "opentelemetry" in m.packages] == [TRACES]


def test_stubs_are_imported_only_in_servicers_clients_and_rpc() -> None:
    def is_other_module(module: Module) -> bool:
        return module.file.name not in STUB_FILES and not module.under(*STUB_FOLDERS)

    assert not breaches(lambda _: {"protos"}, is_other_module)


def test_runtime_does_not_import_grpc() -> None:
    assert not breaches(lambda _: GRPC, lambda module: module.under("draftloop/runtime"))


def test_shared_types_import_only_light_libraries() -> None:
    def shared(module: Module) -> bool:
        folders = ("draftloop/client", "draftloop/grammars", "draftloop/rpc", "draftloop/runtime")
        return module.package == "draftloop" and not module.under(*folders)

    assert not breaches(lambda module: module.packages - STANDARD - LIGHT, shared)


def test_grammars_import_only_llguidance_and_numpy() -> None:
    def forbidden(module: Module) -> set[str]:
        return module.packages - STANDARD - {"draftloop", "llguidance", "numpy"}

    assert not breaches(forbidden, lambda module: module.under("draftloop/grammars"))


def test_client_imports_only_the_retry_library() -> None:
    """Calls are made in draftloop/rpc; otherwise the client needs only the retry library."""

    def forbidden(module: Module) -> set[str]:
        return module.packages - STANDARD - {"draftloop", "tenacity"}

    assert not breaches(forbidden, lambda module: module.under("draftloop/client"))


def test_client_runs_on_an_installation_without_extras() -> None:
    """The client imports only distributions that `draftloop` without extras requires."""
    code = "import sys, draftloop.client; sys.stdout.write(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    imported = {name.partition(".")[0] for name in run.stdout.split()}
    assert {"grpc", "tenacity"} <= imported
    assert not imported & (HEAVY | COMPILERS | {"numpy", "redis", *SERVICES, "phrase_store"})


def import_graph() -> dict[str, set[str]]:
    """For every module, the modules of this repository that it imports when it runs.

    `from package import submodule` counts as an import of the submodule only: a package's
    `__init__` may gather submodules that import each other.
    """
    names = {module.name for module in modules()}
    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = {name for name in module.imports if name in names} - {module.name}
        graph[module.name] = {
            name for name in targets if not any(other.startswith(f"{name}.") for other in targets)
        }
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a cycle; empty if there is none."""
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for target in sorted(graph[name]):
            if cycle := visit(target, (*path, name)):
                return cycle
        finished.add(name)
        return []

    return next((cycle for name in sorted(graph) if (cycle := visit(name, ()))), [])


def test_no_import_cycles() -> None:
    assert find_cycle(import_graph()) == []


def test_only_main_modules_import_servicers() -> None:
    """Nothing imports what starts a role, and only that imports the role's servicer."""
    imports = import_graph()
    graph = {module.name: imports[module.name] for module in modules() if is_product(module)}
    assert not [name for name, targets in graph.items() if any("__main__" in t for t in targets)]
    servicers = {f"{role}.servicer" for role in SERVICES}
    assert servicers <= graph.keys()
    assert {name for name, targets in graph.items() if servicers & targets} == {
        f"{role}.__main__" for role in SERVICES
    }


def test_find_cycle_detects_cycles() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_shadows_the_standard_library() -> None:
    assert not [m.path for m in modules() if {m.file.stem, m.package} & STANDARD]


def project_file() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def declared_distributions(*extras: str) -> set[str]:
    """The distributions that an installation with these extras requires directly."""
    table = project_file()["project"]
    texts = list(table["dependencies"])
    for extra in extras:
        texts += table["optional-dependencies"][extra]
    requirements = [Requirement(text) for text in texts]
    own = project_file()["project"]["name"]
    nested = {name for needed in requirements if needed.name == own for name in needed.extras}
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    return names | (declared_distributions(*nested) if nested else set())


def extras_of(module: Module) -> tuple[str, ...]:
    """The extras with which this module must be importable."""
    if module.path == TRACES:
        return ("tracing",)
    if module.under("draftloop/runtime"):
        return ("phrases",) if module.name in LOOPS else ("verifier",)
    if module.under("draftloop/grammars"):
        return ("grammars",)
    if module.package in TOOLS:
        return tuple(project_file()["project"]["optional-dependencies"])
    return {
        "drafter_service": ("drafter",),
        "verifier_service": ("verifier",),
        "orchestrator": ("orchestrator",),
        "phrase_store": ("phrases",),
    }.get(module.package, ())


def test_every_import_is_declared_for_its_role() -> None:
    providers = packages_distributions()
    undeclared = []
    for module in modules():
        # packaging comes with pytest, triton only with torch for CUDA
        available = declared_distributions(*extras_of(module)) | {"packaging", "triton"}
        for name in module.packages - STANDARD - set(PACKAGES):
            candidates = {canonicalize_name(provider) for provider in providers.get(name, [name])}
            if not candidates & available:
                undeclared.append(f"{module.path}: {name} of {sorted(candidates)}")
    assert not undeclared


def test_every_package_is_listed() -> None:
    listed = set(project_file()["tool"]["setuptools"]["packages"])
    folders = {module.path.rpartition("/")[0] for module in modules() if is_product(module)}
    assert listed == {folder.replace("/", ".") for folder in folders} | {"protos"}


def test_orchestrator_never_imports_torch() -> None:
    """Importing torch costs seconds and hundreds of megabytes."""
    light = [
        module.name
        for module in modules()
        if is_product(module)
        and not module.under("drafter_service", "verifier_service", "draftloop/runtime")
        and not module.name.endswith("__main__")
    ]
    assert "draftloop.rpc.server" in light
    code = (
        f"import importlib, sys\nfor name in {light!r}: importlib.import_module(name)\n"
        f"sys.exit(', '.join(sorted({HEAVY!r} & set(sys.modules))) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("package", SERVICES)
def test_help_imports_nothing_heavy(package: str) -> None:
    """Settings are parsed before anything heavy is imported."""
    code = (
        f"import runpy, sys\nsys.argv = [{package!r}, '--help']\n"
        f"try: runpy.run_module({package!r}, run_name='__main__')\n"
        f"except SystemExit as end: assert not end.code, end.code\n"
        f"sys.exit(', '.join(sorted({HEAVY | COMPILERS!r} & set(sys.modules))) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "--listen" in run.stdout


@pytest.mark.parametrize("role", SERVICES)
def test_grpc_experiments_are_set_before_grpc_is_imported(role: str) -> None:
    """gRPC reads GRPC_EXPERIMENTS when it is imported, so `draftloop.rpc.role` must come before."""
    code = f"import sys, {role}.__main__; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
