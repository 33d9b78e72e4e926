"""Administration of phrase logs: counting, clearing, export to a file and import from one.

The file has one JSON object per line. The first is {"format": "draftloop-phrases", "version": 1};
the others are records: {"model": fingerprint, "tenant": name, "origin": 64 bits, "phrases":
[[context, tokens, committed], …]}, contexts and tokens as lists of token ids.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftloop.config import broken_rules
from draftloop.errors import InvalidInput
from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase
from phrase_store.log import START, LogOptions, PhraseLog, open_log
from phrase_store.namespace import namespace_name, owners_of
from phrase_store.records import (
    ORIGIN_LIMIT,
    TOKEN_LIMIT,
    Batch,
    encode_all,
    encode_cleared,
    new_origin,
)
from phrase_store.unpack import decode, unpack

BATCH_RECORDS = 500  # records read or written per call
# Timeouts are longer than in services, as a person waits; `max_length` must not truncate a log.
LONG_TIMEOUTS = LogOptions(max_length=2**31, connect_timeout_s=5.0, operation_timeout_s=10.0)

ReportProgress = Callable[
    [int], object
]  # called with the number of records done since the last call
Token = Annotated[int, Field(ge=0, lt=TOKEN_LIMIT)]
Form = TypeVar("Form", bound=BaseModel)


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["draftloop-phrases"]
    version: Literal[1]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(pattern="^[^:]+$", max_length=200)
    tenant: str = Field("", max_length=1000)
    origin: int = Field(ge=0, lt=ORIGIN_LIMIT)
    phrases: list[
        tuple[
            Annotated[list[Token], Field(max_length=MAX_CONTEXT)],
            Annotated[list[Token], Field(min_length=1, max_length=MAX_PHRASE_TOKENS)],
            bool,
        ]
    ] = Field(max_length=100_000)

    def records(self, salt: int) -> Iterator[bytes]:
        """The line as log records; `salt` changes their origin to that of a new request.

        Otherwise the process that published the request would ignore them as its own, although it
        may have forgotten the phrases since.
        """
        phrases = [Phrase(tuple(context), tuple(tokens), committed)
                   for context, tokens, committed in self.phrases]  # fmt: skip
        return encode_all(self.origin ^ salt, phrases)


@dataclass(slots=True)
class Census:
    """Counts of a log's contents."""

    records: int = 0
    phrases: int = 0
    tokens: int = 0
    bytes: int = 0
    damaged: int = 0  # records that are foreign, damaged or of another version


@contextlib.contextmanager
def open_with_long_timeouts(url: str, namespace: str) -> Iterator[PhraseLog]:
    """A log with long timeouts; raises InvalidInput for a URL that breaks the rules.

    Open one log at a time: each has a connection, and there may be thousands of tenants.
    """
    with contextlib.closing(open_log(url, namespace, LONG_TIMEOUTS)) as log:
        yield log


def count(log: PhraseLog, report_progress: ReportProgress) -> Census:
    """Counts the contents of the whole log; raises LogUnavailable."""
    census = Census()
    for records in _read(log):
        unpacked = unpack(records)
        census.records += len(records)
        census.phrases += unpacked.phrases.contexts.size
        census.tokens += unpacked.phrases.text.size - int(unpacked.phrases.contexts.sum())
        census.bytes += sum(map(len, records))
        census.damaged += unpacked.skipped
        report_progress(len(records))
    return census


def write_header(file: TextIO) -> None:
    """Writes the first line of a file."""
    _write(file, _Header(format="draftloop-phrases", version=1).model_dump())


def export_log(
    log: PhraseLog, namespace: str, file: TextIO, report_progress: ReportProgress
) -> int:
    """Appends a log's records to a file; returns how many of them held readable phrases."""
    model, tenant = owners_of(namespace)
    written = 0
    for records in _read(log):
        for batch in map(decode, records):
            if batch is not None and batch.phrases:
                written += 1
                _write(file, _object(model, tenant, batch))
        report_progress(len(records))
    return written


def check_file(path: Path) -> int:
    """The number of records in a file. Raises OSError, or InvalidInput for its first mistake."""
    return sum(1 for _ in _lines(path))


def import_file(url: str, path: Path, report_progress: ReportProgress) -> int:
    """Adds a checked file's phrases to the logs that it names; returns how many there were.

    Raises LogUnavailable. Some phrases may have been added then; a second import counts them twice.
    """
    waiting: dict[str, list[bytes]] = {}
    phrases, salt = 0, new_origin()

    def write(name: str) -> None:
        with open_with_long_timeouts(url, name) as log:
            log.append(waiting.pop(name))

    for line in _lines(path):
        name = namespace_name(line.model, line.tenant)
        records = waiting.setdefault(name, [])
        records += line.records(salt)
        phrases += len(line.phrases)
        if len(records) >= BATCH_RECORDS:
            write(name)
        report_progress(1)
    for name in list(waiting):
        write(name)
    return phrases


def clear_log(log: PhraseLog) -> None:
    """Empties a log and tells all of its readers to forget its phrases."""
    log.clear(encode_cleared(new_origin()))


def _read(log: PhraseLog) -> Iterator[Sequence[bytes]]:
    position = START
    while entries := log.read(position, BATCH_RECORDS):
        yield [entry.record for entry in entries]
        position = entries[-1].position


def _object(model: str, tenant: str, batch: Batch) -> dict[str, object]:
    phrases = [[phrase.context, phrase.tokens, phrase.committed] for phrase in batch.phrases]
    return {"model": model, "tenant": tenant, "origin": batch.origin, "phrases": phrases}


def _write(file: TextIO, value: object) -> None:
    file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def _lines(path: Path) -> Iterator[_Line]:
    with path.open("rb") as file:
        _parsed(_Header, 1, file.readline())
        for number, line in enumerate(file, start=2):
            if line.strip():
                yield _parsed(_Line, number, line)


def _parsed(form: type[Form], number: int, line: bytes) -> Form:
    place = f"line {number}"
    try:
        return form.model_validate_json(line.decode())
    except UnicodeDecodeError as error:  # replacing characters could merge two tenants' names
        raise InvalidInput(place, "must be UTF-8", ascii(line[error.start : error.end])) from None
    except ValidationError as error:
        name, rule, value = next(broken_rules(error))
        field = f"{place}, {name}" if name else place
        raise InvalidInput(field, rule[0].lower() + rule[1:], value) from None
