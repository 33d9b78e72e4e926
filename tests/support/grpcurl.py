"""Imitates grpcurl: finds the method by reflection, sends JSON, returns the answers as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

PARSER = argparse.ArgumentParser(exit_on_error=False)
PARSER.add_argument("-plaintext", action="store_true")
PARSER.add_argument("-cacert", type=Path)
PARSER.add_argument("-d", dest="body", default="{}")
PARSER.add_argument("-H", dest="headers", action="append", default=[])
PARSER.add_argument("address")
PARSER.add_argument("method")


def grpcurl(arguments: Sequence[str], folder: Path, address: str, key: str = "") -> list[str]:
    """The answers as JSON; files are in `folder`, and `address` and `key` replace the page's."""
    options = PARSER.parse_args(arguments)
    service, _, name = options.method.rpartition("/")
    with _channel(options, folder, address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName(service).FindMethodByName(name)
        request = json_format.Parse(options.body, GetMessageClass(method.input_type)())
        call = channel.unary_stream if method.server_streaming else channel.unary_unary
        headers = [tuple(header.replace("$KEY", key).split(": ", 1)) for header in options.headers]
        answer = call(
            f"/{options.method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )(request, metadata=headers, timeout=60)
        answers = answer if method.server_streaming else [answer]
        return [json_format.MessageToJson(one) for one in answers]


def _channel(options: argparse.Namespace, folder: Path, address: str) -> grpc.Channel:
    if options.plaintext:
        return grpc.insecure_channel(address)
    trusted = (folder / options.cacert).read_bytes() if options.cacert else None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted))
