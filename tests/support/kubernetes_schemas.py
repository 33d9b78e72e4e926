"""Strict schemas of Kubernetes resources: an unknown field or kind is an error.

Kubernetes' own schemas come with the package kubernetes-validate. Those of the Prometheus operator,
of KEDA and of the Gateway API are in `schemas/`, written by hand from the documented fields, since
no package has strict ones. They contain only what these manifests may need.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

SCHEMAS = Path(__file__).parent / "schemas"
# The first release with preStop.sleep enabled, and the newest whose schemas are available.
OLDEST, NEWEST = "1.30", "1.37"


@functools.cache
def custom_resources() -> dict[tuple[str, str], dict[str, Any]]:
    """Schemas by API version and kind."""
    schemas = {}
    for file in SCHEMAS.glob("*.json"):
        schema = json.loads(file.read_text(encoding="utf-8"))
        properties = schema["properties"]
        schemas[properties["apiVersion"]["const"], properties["kind"]["const"]] = schema
    return schemas


def complaint(document: dict[str, Any], version: str) -> str:
    """What is wrong with a document for this version of Kubernetes; empty if nothing is."""
    schema = custom_resources().get((document["apiVersion"], document["kind"]))
    try:
        if schema is not None:
            jsonschema.Draft202012Validator(schema).validate(document)
        else:
            kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError as error:
        return str(error.message)
    except jsonschema.ValidationError as error:
        return f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}"
    return ""
