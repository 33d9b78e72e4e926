"""The protos: stubs are fresh, everything is documented, names of times have units."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tests.contract.repository import ROOT

SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").glob("*.proto"))
UNITS = ("_ns", "_us", "_ms", "_s")
TIME = re.compile(r"(^|_)(time|duration|latency|timeout|delay|elapsed|interval|overhead|wait)(_|$)")
NUMBERS = {
    kind
    for name, kind in FieldDescriptorProto.Type.items()
    if re.search("INT|FIXED|FLOAT|DOUBLE", name)
}
# Field numbers of FileDescriptorProto and its parts, as paths in the source info use them.
FILE_MESSAGES, FILE_ENUMS, FILE_SERVICES = 4, 5, 6
MESSAGE_FIELDS, MESSAGE_MESSAGES, MESSAGE_ENUMS, MESSAGE_ONEOFS = 2, 3, 4, 8
ENUM_VALUES, SERVICE_METHODS = 2, 2

Location = tuple[int, ...]
Named = tuple[str, Location]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """The sources as the installed compiler reads them, with comments."""
    output = tmp_path_factory.mktemp("protos") / "set.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_source_info"]
    command += [f"--descriptor_set_out={output}", *SOURCES]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return {file.name: file for file in FileDescriptorSet.FromString(output.read_bytes()).file}


def stub_name(source: str) -> str:
    return source.removesuffix(".proto").replace("/", ".") + "_pb2"


@pytest.mark.parametrize("source", SOURCES)
def test_stubs_are_fresh(compiled: dict[str, FileDescriptorProto], source: str) -> None:
    """Compares descriptors, so any version of the generator will do. `make protos` renews them."""
    embedded = FileDescriptorProto()
    importlib.import_module(stub_name(source)).DESCRIPTOR.CopyToProto(embedded)
    expected = FileDescriptorProto()
    expected.CopyFrom(compiled[source])
    expected.ClearField("source_code_info")
    for message in [*messages(embedded), *messages(expected)]:
        for field in message.field:
            field.ClearField("json_name")  # the compiler fills it in; stubs may leave it out
    assert embedded == expected


@pytest.mark.parametrize("source", SOURCES)
def test_typed_stubs_and_methods_are_fresh(
    compiled: dict[str, FileDescriptorProto], source: str
) -> None:
    base = ROOT / source.removesuffix(".proto")
    types = Path(f"{base}_pb2.pyi").read_text()
    for message in messages(compiled[source]):
        assert message.options.map_entry or f"class {message.name}(" in types
        for field in message.field:
            assert message.options.map_entry or f"{field.name.upper()}_FIELD_NUMBER" in types
    services = Path(f"{base}_pb2_grpc.py").read_text()
    for path in method_paths(compiled[source]):
        assert f"'{path}'" in services


def test_stubs_import_each_other_unpatched() -> None:
    for file in (ROOT / "protos").glob("*_pb2*.py"):
        assert not re.search(r"^import \w+_pb2", file.read_text(), re.MULTILINE)


def method_paths(file: FileDescriptorProto) -> list[str]:
    return [
        f"/{file.package}.{service.name}/{method.name}"
        for service in file.service
        for method in service.method
    ]


def messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    """Every message, including nested ones."""
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        yield message
        waiting += message.nested_type


def enums(file: FileDescriptorProto) -> Iterator[EnumDescriptorProto]:
    yield from file.enum_type
    for message in messages(file):
        yield from message.enum_type


def named_elements(file: FileDescriptorProto) -> Iterator[Named]:
    """Everything in a file that has a name, with its path in the source info."""
    for index, message in enumerate(file.message_type):
        yield from named_in_message(message, (FILE_MESSAGES, index))
    for index, enum in enumerate(file.enum_type):
        yield from named_in_enum(enum, (FILE_ENUMS, index))
    for index, service in enumerate(file.service):
        yield service.name, (FILE_SERVICES, index)
        for number, method in enumerate(service.method):
            yield f"{service.name}.{method.name}", (FILE_SERVICES, index, SERVICE_METHODS, number)


def named_in_message(message: DescriptorProto, at: Location) -> Iterator[Named]:
    if message.options.map_entry:
        return
    yield message.name, at
    # An `optional` field has a oneof that the compiler generated.
    made_up = {field.oneof_index for field in message.field if field.proto3_optional}
    for index, field in enumerate(message.field):
        yield f"{message.name}.{field.name}", (*at, MESSAGE_FIELDS, index)
    for index, choice in enumerate(message.oneof_decl):
        if index not in made_up:
            yield f"{message.name}.{choice.name}", (*at, MESSAGE_ONEOFS, index)
    for index, nested in enumerate(message.nested_type):
        yield from named_in_message(nested, (*at, MESSAGE_MESSAGES, index))
    for index, enum in enumerate(message.enum_type):
        yield from named_in_enum(enum, (*at, MESSAGE_ENUMS, index))


def named_in_enum(enum: EnumDescriptorProto, at: Location) -> Iterator[Named]:
    yield enum.name, at
    for index, value in enumerate(enum.value):
        yield value.name, (*at, ENUM_VALUES, index)


@pytest.mark.parametrize("source", SOURCES)
def test_every_element_has_a_comment(compiled: dict[str, FileDescriptorProto], source: str) -> None:
    file = compiled[source]
    commented = {
        tuple(location.path)
        for location in file.source_code_info.location
        if location.leading_comments.strip() or location.trailing_comments.strip()
    }
    assert [name for name, location in named_elements(file) if location not in commented] == []


@pytest.mark.parametrize("source", SOURCES)
def test_enum_zero_means_unspecified(compiled: dict[str, FileDescriptorProto], source: str) -> None:
    for enum in enums(compiled[source]):
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
        zero = next(value for value in enum.value if value.number == 0)
        assert zero.name == f"{prefix}_UNSPECIFIED"
        assert all(value.name.startswith(prefix + "_") for value in enum.value)


@pytest.mark.parametrize("source", SOURCES)
def test_time_fields_name_their_unit(compiled: dict[str, FileDescriptorProto], source: str) -> None:
    unitless = [
        f"{message.name}.{field.name}"
        for message in messages(compiled[source])
        for field in message.field
        if field.type in NUMBERS
        and (TIME.search(field.name) or message.name.endswith("Timings"))
        and field.type != FieldDescriptorProto.TYPE_UINT32  # counts in Timings messages
        and not field.name.endswith(UNITS)
    ]
    assert unitless == []


def test_every_call_has_its_own_messages(compiled: dict[str, FileDescriptorProto]) -> None:
    types: list[str] = []
    for file in compiled.values():
        assert file.package == "draftloop.v1"
        for service in file.service:
            for method in service.method:
                assert method.input_type.endswith("Request")
                assert method.output_type.endswith("Response")
                types += [method.input_type, method.output_type]
    assert len(types) == len(set(types))
