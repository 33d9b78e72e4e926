"""What is continued: kinds of work, each with prompts to measure and others to warm up on."""

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
LONGEST_PROMPT = 900
# An edited file is begun so far, and the rest is to be carried on.
BEGUN = 0.35
LONGEST_ORIGINAL = 400
# More entries than a continuation has room for: its length is what is asked for.
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
    grammar: Grammar | None = None  # of how it goes on


@dataclass(frozen=True, slots=True)
class Material:
    """Prompts to measure, and prompts of the same kind that a warm pool is filled from.

    No measured prompt is among the others.
    """

    measured: list[Prompt]
    warming: list[Prompt]


@dataclass(frozen=True, slots=True)
class Entry:
    """A piece of a held-out file and how it goes on."""

    file: str
    text: str
    reference: str


def held_out_prompts(count: int) -> list[Prompt]:
    """The first prompts of the list; raises ValueError where it has fewer."""
    entries = _entries()
    if not 1 <= count <= len(entries):
        raise ValueError(f"prompts: must be from 1 to {len(entries)}, got {count}")
    return [_begun(entry.file, entry.text) for entry in entries[:count]]


def prompts_in(file: Path) -> list[Prompt]:
    """Texts without token ids, for a model whose tokenizer is not here.

    Of a `.jsonl` every line's field `prompt`, of any other file every line that is not blank.
    Raises InvalidInput where there is none, and OSError where the file cannot be read.
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
    """Its first so many tokens, and their text."""
    ids = prompt.token_ids[:tokens]
    return replace(prompt, text=_tokenizer().decode(list(ids)), token_ids=ids)


def completion(count: int) -> Material:
    """Held-out Python files; warm: by other files."""
    entries = [entry for entry in _entries() if entry.file not in _set_apart()][:count]
    measured = [_begun(entry.file, entry.text) for entry in entries]
    return _warmed_by_others(measured, (_begun(e.file, e.text) for e in _entries()[::-1]))


def editing(count: int) -> Material:
    """A held-out file, then its second version with a renaming begun; warm: by other files."""
    edits = [edit for entry in _entries() if (edit := _renamed(entry)) is not None]
    measured = [edit for edit in edits if edit.file not in _set_apart()][:count]
    return _warmed_by_others(measured, edits)


def agent(count: int) -> Material:
    """A module's functions completed one after another; warm: by the module's earlier ones."""
    by_file: dict[str, list[Entry]] = {}
    for entry in _entries():
        by_file.setdefault(entry.file, []).append(entry)
    modules = [entries for entries in by_file.values() if len(entries) >= 3][:count]
    measured = [_begun(entries[-1].file, entries[-1].text) for entries in modules]
    earlier = [entry for entries in modules for entry in entries[:-1]]
    return Material(measured, [_begun(entry.file, entry.text) for entry in earlier])


def chat(count: int) -> Material:
    """First turns of Spec-Bench questions; raises Missing where they are not at hand."""
    if not SPEC_BENCH.exists():
        raise Missing(f"Spec-Bench prompts are not on this machine ({SPEC_BENCH_NAME})")
    lines = SPEC_BENCH.read_text(encoding="utf-8").splitlines()
    stride = max(1, len(lines) // (count + WARM_PROMPTS))
    questions = [json.loads(line) for line in lines[::stride]]
    prompts = [_prompt(str(q["question_id"]), q["turns"][0]) for q in questions]
    return _warmed_by_others(prompts[:-WARM_PROMPTS][:count], prompts)


def structured(count: int) -> Material:
    """Held-out Python files, and what is in them as JSON; warm: by other files."""
    code = completion(count)
    return Material(
        [_asked_for_json(prompt) for prompt in code.measured],
        [_asked_for_json(prompt) for prompt in code.warming],
    )


# Those of the record.
MAIN_WORKLOADS: dict[str, Callable[[int], Material]] = {
    "completion": completion,
    "editing": editing,
    "agent": agent,
    "chat": chat,
}
WORKLOADS = {**MAIN_WORKLOADS, "json": structured}


def at_hand(
    names: Iterable[str], count: int, leave_out: Callable[[str], object]
) -> Iterator[tuple[str, Material]]:
    """The workloads whose prompts are on this machine; of the others `leave_out` hears why."""
    for name in names:
        try:
            material = WORKLOADS[name](count)
        except Missing as missing:
            leave_out(f"{name}: {missing}")
        else:
            yield name, material


def material_of(names: Collection[str], count: int) -> dict[str, Material]:
    """Those at hand; says which are not. Raises InvalidInput where none is."""
    found = dict(at_hand(names, count, lambda why: sys.stderr.write(f"left out: {why}\n")))
    if not found:
        rule = "must be some whose prompts are on this machine"
        raise InvalidInput("workloads", rule, ", ".join(names))
    return found


def _set_apart() -> frozenset[str]:
    """Files that are never measured, however many prompts are: a warm pool needs others."""
    files = dict.fromkeys(entry.file for entry in _entries())
    return frozenset(list(files)[-WARM_PROMPTS:])


def _warmed_by_others(measured: list[Prompt], prompts: Iterable[Prompt]) -> Material:
    """These, and the first prompts that are of no file of theirs."""
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
    return Prompt(file, text, tuple(_tokenizer().encode(text)[-LONGEST_PROMPT:]))


def _begun(file: str, text: str) -> Prompt:
    """A text to be carried on, which ends where a token does.

    To the tokenizer the end of a line and the next one's indentation are one token. After a line's
    end by itself a model has only seen lines without any, so that it left the block it was in.
    """
    return _prompt(file, text.rstrip())


def _asked_for_json(prompt: Prompt) -> Prompt:
    asked = _prompt(prompt.file, f"{prompt.text}\n\n# What this module defines, as JSON:\n")
    return replace(asked, grammar=DEFINITIONS)


def _renamed(entry: Entry) -> Prompt | None:
    """The text, and again its beginning with its commonest name changed."""
    ids = _tokenizer().encode(entry.text + entry.reference)[:LONGEST_ORIGINAL]
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
