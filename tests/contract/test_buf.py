"""buf's standard rules hold for the protos, except for those that `buf.yaml` excepts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig

import pytest

from tests.contract.repository import ROOT
from tests.contract.test_protos import SOURCES


def run_buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the buf installed with the tests, which needs no network for local sources."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    program = shutil.which("buf", path=path)
    if program is None:
        pytest.skip("buf is not installed: it comes with the package buf-bin")
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_buf_finds_nothing() -> None:
    result = run_buf("lint")
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_buf_checks_all_protos() -> None:
    """Otherwise a check of no files would always succeed."""
    assert sorted(run_buf("ls-files").stdout.split()) == SOURCES
