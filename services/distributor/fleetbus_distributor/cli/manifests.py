"""Reads MultiClusterResources from a file."""

from __future__ import annotations

import pathlib
import sys
from typing import Any, cast

import yaml

from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.process.file_errors import file_problem
from fleetbus_distributor.render.spec import API_VERSION, KIND


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
        found: list[Any] = [one for one in yaml.safe_load_all(text) if one is not None]
    except (OSError, ValueError) as e:
        raise ConfigError(f"{file}: cannot be read: {file_problem(e)}") from e
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{file}{at}: not valid YAML") from e
    if not found:
        raise ConfigError(f"{file}: there is no {KIND} in it")
    return [_checked(one, f"{file}, document {n}", namespace) for n, one in enumerate(found, 1)]


def _checked(found: Any, where: str, namespace: str) -> Object:
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: not an object")
    document = cast("Object", found)
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        kind = f"{document.get('kind')} of {document.get('apiVersion')}"
        raise ConfigError(f"{where}: {kind} is no {KIND} of {API_VERSION}")
    metadata: Any = document.get("metadata")
    if not isinstance(metadata, dict) or not cast("Object", metadata).get("name"):
        raise ConfigError(f"{where}: metadata.name is missing")
    known = cast("Object", metadata)
    return {**document, "metadata": {**known, "namespace": known.get("namespace") or namespace}}
