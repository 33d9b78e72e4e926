"""The samples of a run so far, in a file that survives the run: one line per repetition."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import Sample
from draftloop.errors import StartupFailure


@dataclass(slots=True)
class Journal:
    """A journal, new or to be continued; `identity` is what two runs must share to be joined.

    Only whole repetitions are written, so that everything in it can be used.
    """

    file: Path
    identity: Mapping[str, Any]
    samples: list[Sample] = field(default_factory=list)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def begin(cls, file: Path, identity: Mapping[str, Any]) -> Journal:
        """An empty journal; replaces what an earlier run left under this name."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"identity": identity}) + "\n", encoding="utf-8")
        return cls(file, identity)

    @classmethod
    def resume(cls, file: Path, identity: Mapping[str, Any]) -> Journal:
        """The journal that an interrupted run left, or an empty one.

        A last line without an end, from a run that was killed or whose disk was full, is removed.
        Raises StartupFailure if the other run had different settings: such runs must not be mixed.
        """
        written = file.read_bytes() if file.exists() else b""
        whole = written[: written.rfind(b"\n") + 1]
        if not whole:
            return cls.begin(file, identity)
        head, *lines = whole.decode().splitlines()
        found = json.loads(head)["identity"]
        expected = json.loads(json.dumps(identity))
        differing = sorted(name for name in {*found, *expected}
                           if found.get(name) != expected.get(name))  # fmt: skip
        if differing:
            raise StartupFailure(
                f"resume: {file.name} was measured with another {', '.join(differing)}"
            )
        os.truncate(file, len(whole))
        journal = cls(file, identity)
        for line in lines:
            entry = json.loads(line)
            journal.profiles |= entry.get("profiles", {})
            journal.samples += [Sample.from_record(record) for record in entry.get("samples", [])]
        return journal

    def add_profile(self, name: str, described: dict[str, Any]) -> None:
        """Writes the description of the models for the samples that follow."""
        self.profiles[name] = described
        self._write({"profiles": {name: described}})

    def add(self, repetition: Sequence[Sample]) -> None:
        """Writes a whole repetition."""
        self.samples += repetition
        self._write({"samples": [sample.record() for sample in repetition]})

    def seeds(self, profile: str, workload: str) -> frozenset[int]:
        """Seeds of the repetitions that were already measured."""
        return frozenset(
            sample.seed
            for sample in self.samples
            if (sample.profile, sample.workload) == (profile, workload)
        )

    def _write(self, entry: dict[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")
