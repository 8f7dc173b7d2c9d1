"""The documents below /openapi; those of built-in groups are made once for all clusters."""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.encoding.negotiation import negotiate
from fleetbus_emulator.apiserver.errors import NotServed
from fleetbus_emulator.apiserver.http.exchange import Request, Response, json_response
from fleetbus_emulator.apiserver.kubernetes_version import GIT_VERSION
from fleetbus_emulator.apiserver.openapi import paths
from fleetbus_emulator.apiserver.openapi.encode import encode
from fleetbus_emulator.apiserver.openapi.schemas import Schemas
from fleetbus_emulator.apiserver.types.served import Served

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.resource import ResourceType
    from fleetbus_emulator.apiserver.types.served import ServedTypes

JsonObject = dict[str, Any]
INFO = {"title": "Kubernetes", "version": GIT_VERSION}
CUSTOM_DOCUMENTS = 32  # kept; more are made anew
V3, V2 = "/openapi/v3", "/openapi/v2"
# Go clients ask for the first form, with the @, and get the second, which is a valid media type.
PROTOBUF_ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PROTOBUF_SENT = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
FOREVER = "public, immutable, max-age=31536000"


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
    path_items: JsonObject = {}
    for rtype, version in types:
        entry = Served(rtype, rtype.versions[version])
        path_items |= paths.version_3(entry, schemas.of(entry))
    document: JsonObject = {
        "openapi": "3.0.0",
        "info": INFO,
        "paths": path_items,
        "components": {"schemas": schemas.found},
    }
    return orjson.dumps(document)


def version_2(served: ServedTypes) -> JsonObject:
    """The document of all that is served."""
    schemas = Schemas(openapi=2)
    path_items: JsonObject = {}
    groups = {"": ["v1"], **served.groups()}
    for group, version in ((g, v) for g, names in groups.items() for v in names):
        for entry in served.in_version(group, version):
            path_items |= paths.version_2(entry, schemas.of(entry))
    return {"swagger": "2.0", "info": INFO, "paths": path_items, "definitions": schemas.found}


def handles(path: str) -> bool:
    """Whether a path is answered here."""
    return path.startswith((V3, V2))


def answer(request: Request, served: ServedTypes) -> Response:
    """Answer the roots and the documents below them.

    Raises:
        NotServed: There is no such document.
        ApiError: 406, the client accepts no form that there is.
    """
    if request.path.startswith(V2):
        return _version_2(request, served)
    negotiate(request.headers.get("accept", ""), {})
    place = request.path.removeprefix(V3).strip("/")
    groups = {"api/v1": ("", "v1")}
    groups |= {f"apis/{g}/{v}": (g, v) for g, vs in served.groups().items() for v in vs}
    if not place:
        addresses = {
            name: f"{V3}/{name}?hash={fingerprint(*pair, served)}" for name, pair in groups.items()
        }
        listed = {name: {"serverRelativeURL": address} for name, address in addresses.items()}
        return json_response(200, {"paths": listed})
    if place not in groups:
        raise NotServed
    response = Response(200, version_3(*groups[place], served))
    if request.query.get("hash") == fingerprint(*groups[place], served):
        response.headers |= {"Cache-Control": FOREVER, "Vary": "Accept"}
    return response


def _version_2(request: Request, served: ServedTypes) -> Response:
    if request.path.rstrip("/") != V2:
        raise NotServed
    accept = request.headers.get("accept", "")
    if PROTOBUF_ASKED in accept or PROTOBUF_SENT in accept:
        body = encode(version_2(served))
        return Response(200, body, content_type=PROTOBUF_SENT)
    negotiate(accept, {})
    return json_response(200, version_2(served))
