"""Model cards from measured figures.

`python -m models.card` writes `README.md` into every model's folder, from `evaluation.json` and
`runs.json`. It adds to the latter the runs whose logs are on this machine.
"""

from __future__ import annotations

import argparse
import json
from string import Template
from typing import Any

from models import run_log
from models.layout import CACHE_DIR, DRAFTER_DIR, EVALUATION, MODELS_DIR, RUNS

TEMPLATES = MODELS_DIR / "cards"

Run = dict[str, int]


def known_runs() -> dict[str, Run]:
    """Tokens and minutes of every run: those in `runs.json`, and those whose log is here."""
    runs: dict[str, Run] = json.loads(RUNS.read_text())
    for log in sorted(CACHE_DIR.glob("*.jsonl")):
        for last in run_log.read(log)[-1:]:
            runs[log.stem] = {"tokens": last["tokens"], "minutes": round(last["seconds"] / 60)}
    return runs


def acceptance_table(evaluation: dict[str, Any]) -> str:
    """A Markdown table with one row per measure and one column per kind of text."""
    texts = (evaluation["held_out_text"]["acceptance"], evaluation["continued_text"])
    rows = [
        "| of the positions | held-out text | text continued by the verifier model |",
        "|---|---|---|",
    ]
    for name in texts[0]:
        if name != "positions":
            label = name.replace("@", ", temperature ").replace("_", " ")
            rows.append(f"| {label} | {texts[0][name]:.3f} | {texts[1][name]:.3f} |")
    counts = " | ".join(f"{text['positions']:,.0f}" for text in texts)
    return "\n".join([*rows, f"| positions | {counts} |"])


def figures_of(evaluation: dict[str, Any]) -> dict[str, Any]:
    """The measured figures of one pair, under the names that the templates use."""
    figures = {"bytes_per_token": evaluation["bytes_per_token"]}
    figures |= evaluation["held_out_text"]
    figures["tokens"] = f"{figures['tokens']:,}"
    figures["acceptance"] = acceptance_table(evaluation)
    return figures | {
        f"copied_{name}": value for name, value in evaluation["second_versions"].items()
    }


def write(name: str, facts: dict[str, Any]) -> None:
    """Fills a model's template. Raises KeyError for a fact that it names but that is missing."""
    template = Template((TEMPLATES / f"{name}.md").read_text())
    (MODELS_DIR / name / "README.md").write_text(template.substitute(facts))


def main() -> None:
    """Writes all cards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="2 CPU cores without AMX, shared with other work")
    options = parser.parse_args()
    facts: dict[str, Any] = {"machine": options.machine}
    runs = known_runs()
    RUNS.write_text(json.dumps(runs, indent=2) + "\n")
    for name, run in runs.items():
        facts[f"{name}_tokens"] = f"{run['tokens'] / 1e6:.2f}M"
        facts[f"{name}_minutes"] = str(run["minutes"])
    pairs = {
        drafter: facts | figures_of(evaluation)
        for drafter, evaluation in json.loads(EVALUATION.read_text()).items()
    }
    write("verifier", pairs[DRAFTER_DIR.name])
    for drafter, figures in pairs.items():
        write(drafter, figures)


if __name__ == "__main__":
    main()
