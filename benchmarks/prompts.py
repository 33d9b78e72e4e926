"""Workloads: kinds of text to continue, with prompts to measure and prompts to warm up on."""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from draftloop.config import REPOSITORY, bundled_model
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from orchestrator.tokenizer import Tokenizer

PROMPTS_FILE = REPOSITORY / "models" / "held_out_prompts.jsonl"
SPEC_BENCH_NAME = "../shared/data/spec_bench.jsonl"  # beside the repository
SPEC_BENCH = REPOSITORY / SPEC_BENCH_NAME
WARM_PROMPTS = 4
MAX_PROMPT_TOKENS = 900
# Share of an edited file that is in the prompt; the rest is to be generated.
BEGUN = 0.35
MAX_ORIGINAL_TOKENS = 400
# More entries than fit into a continuation, so that it reaches its maximum length.
DEFINITIONS = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["kind", "name", "arguments", "returns"],
                "properties": {
                    "kind": {"enum": ["function", "class", "method", "constant"]},
                    "name": {"type": "string", "maxLength": 24},
                    "arguments": {
                        "type": "array",
                        "maxItems": 4,
                        "items": {"type": "string", "maxLength": 16},
                    },
                    "returns": {"type": ["string", "null"], "maxLength": 16},
                },
            },
        }
    ),
)


class Missing(Exception):
    """The prompts of a workload are not on this machine."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The beginning of a text that no bundled model was trained on."""

    file: str
    text: str
    token_ids: tuple[int, ...]
    grammar: Grammar | None = None  # for the continuation


@dataclass(frozen=True, slots=True)
class Material:
    """Prompts to measure, and others of the same kind from which a warm pool is filled."""

    measured: list[Prompt]
    warming: list[Prompt]


@dataclass(frozen=True, slots=True)
class Entry:
    """A part of a held-out file and its continuation."""

    file: str
    text: str
    reference: str


def held_out_prompts(count: int) -> list[Prompt]:
    """The first `count` prompts of the list. Raises ValueError if there are fewer."""
    entries = _entries()
    if not 1 <= count <= len(entries):
        raise ValueError(f"prompts: must be from 1 to {len(entries)}, got {count}")
    return [_begun(entry.file, entry.text) for entry in entries[:count]]


def prompts_in(file: Path) -> list[Prompt]:
    """Texts without token ids, for a model whose tokenizer is not available here.

    A `.jsonl` file has one prompt per line, in the field `prompt`; any other file has one in every
    line that is not blank. Raises InvalidInput if there is none, and OSError if the file cannot be
    read.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # JSON may hold other line ends
    except UnicodeDecodeError as error:
        raise InvalidInput("prompts", f"must be text in UTF-8 ({error})", str(file)) from None
    as_json = file.suffix == ".jsonl"
    found = [
        Prompt(f"{file.name}:{number}", _field(line, number) if as_json else line, ())
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise InvalidInput("prompts", "must be a file with at least one prompt", str(file))
    return found


def _field(line: str, number: int) -> str:
    try:
        text = json.loads(line)["prompt"]
    except (ValueError, TypeError, KeyError):
        text = None
    if not isinstance(text, str) or not text:
        rule = 'must be JSON such as {"prompt": "…"}, a text that is not empty'
        raise InvalidInput(f"prompts, line {number}", rule, line)
    return text


def cut(prompt: Prompt, tokens: int) -> Prompt:
    """The prompt's first `tokens` tokens, and their text."""
    ids = prompt.token_ids[:tokens]
    return replace(prompt, text=_tokenizer().decode(list(ids)), token_ids=ids)


def completion(count: int) -> Material:
    """Held-out Python files; warmed with other files."""
    entries = [entry for entry in _entries() if entry.file not in _set_apart()][:count]
    measured = [_begun(entry.file, entry.text) for entry in entries]
    return _warmed_by_others(measured, (_begun(e.file, e.text) for e in _entries()[::-1]))


def editing(count: int) -> Material:
    """A held-out file, then its beginning again with a name changed; warmed with other files."""
    edits = [edit for entry in _entries() if (edit := _renamed(entry)) is not None]
    measured = [edit for edit in edits if edit.file not in _set_apart()][:count]
    return _warmed_by_others(measured, edits)


def agent(count: int) -> Material:
    """Functions of a module completed one after another; warmed with its earlier functions."""
    by_file: dict[str, list[Entry]] = {}
    for entry in _entries():
        by_file.setdefault(entry.file, []).append(entry)
    modules = [entries for entries in by_file.values() if len(entries) >= 3][:count]
    measured = [_begun(entries[-1].file, entries[-1].text) for entries in modules]
    earlier = [entry for entries in modules for entry in entries[:-1]]
    return Material(measured, [_begun(entry.file, entry.text) for entry in earlier])


def chat(count: int) -> Material:
    """First turns of Spec-Bench questions. Raises Missing if the questions are not available."""
    if not SPEC_BENCH.exists():
        raise Missing(f"Spec-Bench prompts are not on this machine ({SPEC_BENCH_NAME})")
    lines = SPEC_BENCH.read_text(encoding="utf-8").splitlines()
    stride = max(1, len(lines) // (count + WARM_PROMPTS))
    questions = [json.loads(line) for line in lines[::stride]]
    prompts = [_prompt(str(q["question_id"]), q["turns"][0]) for q in questions]
    return _warmed_by_others(prompts[:-WARM_PROMPTS][:count], prompts)


def structured(count: int) -> Material:
    """Held-out Python files, and their definitions as JSON; warmed with other files."""
    code = completion(count)
    return Material(
        [_asked_for_json(prompt) for prompt in code.measured],
        [_asked_for_json(prompt) for prompt in code.warming],
    )


# Workloads of the record.
MAIN_WORKLOADS: dict[str, Callable[[int], Material]] = {
    "completion": completion,
    "editing": editing,
    "agent": agent,
    "chat": chat,
}
WORKLOADS = {**MAIN_WORKLOADS, "json": structured}


def available_materials(
    names: Iterable[str], count: int, leave_out: Callable[[str], object]
) -> Iterator[tuple[str, Material]]:
    """Workloads whose prompts are available; for others, `leave_out` is called with the reason."""
    for name in names:
        try:
            material = WORKLOADS[name](count)
        except Missing as missing:
            leave_out(f"{name}: {missing}")
        else:
            yield name, material


def material_of(names: Collection[str], count: int) -> dict[str, Material]:
    """Workloads whose prompts are available; writes which are not.

    Raises InvalidInput if none is.
    """
    found = dict(
        available_materials(names, count, lambda why: sys.stderr.write(f"left out: {why}\n"))
    )
    if not found:
        rule = "must be some whose prompts are on this machine"
        raise InvalidInput("workloads", rule, ", ".join(names))
    return found


def _set_apart() -> frozenset[str]:
    """Files that are never measured, whatever the number of prompts: a warm pool needs others."""
    files = dict.fromkeys(entry.file for entry in _entries())
    return frozenset(list(files)[-WARM_PROMPTS:])


def _warmed_by_others(measured: list[Prompt], prompts: Iterable[Prompt]) -> Material:
    """The measured prompts, and the first of `prompts` that come from other files."""
    files = {prompt.file for prompt in measured}
    others = (prompt for prompt in prompts if prompt.file not in files)
    return Material(measured, list(islice(others, WARM_PROMPTS)))


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


@cache
def _entries() -> Sequence[Entry]:
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()
    return [Entry(e["file"], e["prompt"], e["reference"]) for e in map(json.loads, lines)]


def _prompt(file: str, text: str) -> Prompt:
    return Prompt(file, text, tuple(_tokenizer().encode(text)[-MAX_PROMPT_TOKENS:]))


def _begun(file: str, text: str) -> Prompt:
    """A prompt with trailing white space removed, so that it ends where a token does.

    In the tokenizer, the end of a line and the next line's indentation are one token. The models
    have seen a line end alone only before lines without indentation, so they would leave the block.
    """
    return _prompt(file, text.rstrip())


def _asked_for_json(prompt: Prompt) -> Prompt:
    extended = _prompt(prompt.file, f"{prompt.text}\n\n# What this module defines, as JSON:\n")
    return replace(extended, grammar=DEFINITIONS)


def _renamed(entry: Entry) -> Prompt | None:
    """The text, followed by its beginning with its most common name changed; None if too short."""
    ids = _tokenizer().encode(entry.text + entry.reference)[:MAX_ORIGINAL_TOKENS]
    original = _tokenizer().decode(ids)
    words = Counter(re.findall(r"\b[a-z_]{4,}\b", original))
    names = [word for word, _ in words.most_common() if not keyword.iskeyword(word)]
    lines = original.splitlines(keepends=True)
    if not names or len(lines) < 8:
        return None
    name = names[0]
    changed = re.sub(rf"\b{name}\b", f"new_{name}", original).splitlines(keepends=True)
    begun = "".join(changed[: max(2, int(BEGUN * len(changed)))])
    return _begun(entry.file, f"{original}\n\n# {name} renamed to new_{name}\n{begun}")
