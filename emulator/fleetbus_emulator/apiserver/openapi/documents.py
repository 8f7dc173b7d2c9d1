"""The documents. Those of built-in groups are the same for all clusters and made once."""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.kubernetes_version import GIT_VERSION
from fleetbus_emulator.apiserver.openapi import paths
from fleetbus_emulator.apiserver.openapi.schemas import Schemas
from fleetbus_emulator.apiserver.types.served import Served

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.resource import ResourceType
    from fleetbus_emulator.apiserver.types.served import ServedTypes

JsonObject = dict[str, Any]
INFO = {"title": "Kubernetes", "version": GIT_VERSION}
CUSTOM_DOCUMENTS = 32  # kept; more are made anew


def version_3(group: str, version: str, served: ServedTypes) -> bytes:
    """The document of a group version."""
    entries = served.in_version(group, version)
    make = _custom_document if any(entry.rtype.custom for entry in entries) else _builtin_document
    return make(tuple((entry.rtype, version) for entry in entries))


def fingerprint(group: str, version: str, served: ServedTypes) -> str:
    """A digest that changes with the document of a group version."""
    return hashlib.sha256(version_3(group, version, served)).hexdigest().upper()[:32]


@cache
def _builtin_document(types: tuple[tuple[ResourceType, str], ...]) -> bytes:
    return _made(types)


@lru_cache(maxsize=CUSTOM_DOCUMENTS)
def _custom_document(types: tuple[tuple[ResourceType, str], ...]) -> bytes:
    return _made(types)  # a changed definition is another ResourceType, hence another document


def _made(types: tuple[tuple[ResourceType, str], ...]) -> bytes:
    schemas = Schemas(openapi=3)
    found: JsonObject = {}
    for rtype, version in types:
        entry = Served(rtype, rtype.versions[version])
        found |= paths.version_3(entry, schemas.of(entry))
    document: JsonObject = {
        "openapi": "3.0.0",
        "info": INFO,
        "paths": found,
        "components": {"schemas": schemas.found},
    }
    return orjson.dumps(document)


def version_2(served: ServedTypes) -> JsonObject:
    """The document of all that is served."""
    schemas = Schemas(openapi=2)
    found: JsonObject = {}
    groups = {"": ["v1"], **served.groups()}
    for group, version in ((g, v) for g, names in groups.items() for v in names):
        for entry in served.in_version(group, version):
            found |= paths.version_2(entry, schemas.of(entry))
    return {"swagger": "2.0", "info": INFO, "paths": found, "definitions": schemas.found}
