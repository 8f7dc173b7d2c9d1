"""Reads MultiClusterResources from a file."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING, Any, cast

from fleetbus.errors import ConfigError
from fleetbus.kube.manifest_yaml import read_documents
from fleetbus.process.file_errors import file_problem
from fleetbus_distributor.kind import API_VERSION, KIND

if TYPE_CHECKING:
    from fleetbus.kube.client import Object


def read_manifests(file: pathlib.Path, namespace: str) -> list[Object]:
    """Read the MultiClusterResources of a file; `-` is standard input.

    Args:
        file: YAML or JSON, with any number of documents.
        namespace: of those that name none.

    Raises:
        ConfigError: it cannot be read, or has something else in it.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{file}: cannot be read: {file_problem(e)}") from e
    try:
        documents = read_documents(text)
    except ValueError as e:
        raise ConfigError(f"{file}: {e}") from e
    if not documents:
        raise ConfigError(f"{file}: there is no {KIND} in it")
    return [
        _checked(document, f"{file}, document {n}", namespace)
        for n, document in enumerate(documents, 1)
    ]


def _checked(document: Any, where: str, namespace: str) -> Object:
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: not an object")
    document = cast("Object", document)
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        kind = f"{document.get('kind')} of {document.get('apiVersion')}"
        raise ConfigError(f"{where}: {kind} is no {KIND} of {API_VERSION}")
    metadata: Any = document.get("metadata")
    if not isinstance(metadata, dict) or not cast("Object", metadata).get("name"):
        raise ConfigError(f"{where}: metadata.name is missing")
    fields = cast("Object", metadata)
    for field in ("name", "namespace"):
        if not isinstance(fields.get(field) or "", str):
            raise ConfigError(f"{where}: metadata.{field} is not a string: quote it")
    return {**document, "metadata": {**fields, "namespace": fields.get("namespace") or namespace}}
