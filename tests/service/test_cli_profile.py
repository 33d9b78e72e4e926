"""`draftloop profile` against a server with given model information."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import grpc
import pytest
from typer.testing import CliRunner, Result

from draftloop.model_info import CostPoint, ModelInfo
from draftloop.rpc import convert
from orchestrator.cli import app
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.support.model_info import model_info

MS = 1_000_000
CURVE = (
    CostPoint(1, 10 * MS, 128),
    CostPoint(8, 13 * MS, 128),
    CostPoint(32, 40 * MS, 128),
    CostPoint(1, 12 * MS, 512),
    CostPoint(1, 11 * MS, 128, 2),
)
SVG = "{http://www.w3.org/2000/svg}"


class InfoServicer(generation_pb2_grpc.GenerationServicer):
    """Answers Info with `verifier` and `drafter`, and no other call."""

    def __init__(self) -> None:
        self.verifier: ModelInfo = model_info(model_name="big <one>", cost_curve=CURVE)
        self.drafter: ModelInfo | None = model_info(model_name="small", cost_curve=CURVE[:1])

    def Info(self, request: pb.GenerationInfoRequest, context: Any) -> pb.GenerationInfoResponse:
        drafter = convert.model_info_to_pb(self.drafter) if self.drafter else None
        return pb.GenerationInfoResponse(
            verifier=convert.model_info_to_pb(self.verifier), drafter=drafter
        )


@pytest.fixture
def info_server() -> Iterator[tuple[InfoServicer, str]]:
    """The servicer whose answers can be set, and its address."""
    servicer = InfoServicer()
    server = grpc.server(ThreadPoolExecutor(1))
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def run(server: str, *arguments: str) -> Result:
    environment = {"COLUMNS": "200"}
    return CliRunner().invoke(app, ["profile", *arguments, "--server", server], env=environment)


def test_tables_show_the_cost_of_every_forward(info_server: tuple[InfoServicer, str]) -> None:
    result = run(info_server[1])
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if "█" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[:6] for row in cells] == [
        ["1", "128", "1", "10.00", "0.100", "1.00x"],
        ["8", "128", "1", "13.00", "0.615", "1.30x"],
        ["32", "128", "1", "40.00", "0.800", "4.00x"],
        ["1", "512", "1", "12.00", "0.083", "1.00x"],
        ["1", "128", "2", "11.00", "0.182", "1.00x"],
        ["1", "128", "1", "10.00", "0.100", "1.00x"],
    ]
    assert len(cells[2][6]) > len(cells[1][6]) > len(cells[0][6])
    assert "7 from 0.30" in result.output
    assert "big <one>" in result.output and "small" in result.output


def test_json_has_every_point(info_server: tuple[InfoServicer, str]) -> None:
    profile = json.loads(run(info_server[1], "--json").output)
    assert set(profile) == {"verifier", "drafter"}
    assert profile["verifier"]["model"] == "big <one>"
    assert len(profile["verifier"]["points"]) == len(CURVE)
    point = {"tokens": 1, "context": 128, "batch": 2, "ms": 11.0, "relative": 1.0}
    assert profile["verifier"]["points"][4].items() >= point.items()


def test_plot_has_a_line_per_context_and_batch_size(
    info_server: tuple[InfoServicer, str], tmp_path: Path
) -> None:
    file = tmp_path / "costs.svg"
    result = run(info_server[1], "--plot", str(file))
    assert result.exit_code == 0 and f"drawn: {file}" in result.output
    picture = ElementTree.parse(file)
    assert len(list(picture.iter(f"{SVG}polyline"))) == 3 + 1
    assert len(list(picture.iter(f"{SVG}circle"))) == len(CURVE) + 1
    words = " ".join(text.text or "" for text in picture.iter(f"{SVG}text"))
    assert "big <one>" in words and "2 sessions, each holding 128 tokens" in words


def test_profile_without_drafter_or_measurements(
    info_server: tuple[InfoServicer, str], tmp_path: Path
) -> None:
    servicer, address = info_server
    servicer.drafter, servicer.verifier = None, model_info()
    result = run(address, "--plot", str(tmp_path / "empty.svg"))
    assert result.exit_code == 0, result.output
    assert "verifier: nothing was measured" in result.output
    assert set(json.loads(run(address, "--json").output)) == {"verifier"}


def test_errors_are_reported_in_one_line(
    info_server: tuple[InfoServicer, str], tmp_path: Path
) -> None:
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    for server, arguments, words in (
        (info_server[1], ["--plot", "costs.png"], "plot: must end in .svg"),
        (
            info_server[1],
            ["--plot", str(tmp_path / "no" / "where.svg")],
            f"plot: must be a file in a folder that exists, and there is no {tmp_path / 'no'}",
        ),
        (info_server[1], ["--plot", str(folder)], "plot: cannot be written"),
        ("127.0.0.1:1", [], "no server at 127.0.0.1:1: start one with `draftloop up`"),
    ):
        result = run(server, *arguments)
        assert result.exit_code == 2 and words in result.output
        assert len(result.output.strip().splitlines()) == 1
