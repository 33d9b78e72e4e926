"""Which prompts are measured and which fill warm pools, and missing prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.prompts import WARM_PROMPTS, WORKLOADS, Missing, material_of
from draftloop.errors import InvalidInput


@pytest.mark.parametrize("count", [43, 60, 1000])
@pytest.mark.parametrize("name", WORKLOADS)
def test_warm_pool_has_prompts_for_any_number_measured(name: str, count: int) -> None:
    """From 45 prompts on, the warm pool of `completion` used to be empty."""
    try:
        material = WORKLOADS[name](count)
    except Missing as missing:
        pytest.skip(str(missing))
    assert 0 < len(material.measured) <= count and len(material.warming) >= WARM_PROMPTS
    if name != "agent":  # whose pool has other parts of the same modules
        files = {prompt.file for prompt in material.measured}
        assert files.isdisjoint(prompt.file for prompt in material.warming)


def test_workload_without_prompts_is_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Benchmarks without services used to end well, without a message and without figures."""
    monkeypatch.setattr("benchmarks.prompts.SPEC_BENCH", Path("nowhere.jsonl"))
    assert list(material_of(["completion", "chat"], 1)) == ["completion"]
    assert "left out: chat: Spec-Bench prompts are not" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="workloads: must be some whose prompts are"):
        material_of(["chat"], 1)
