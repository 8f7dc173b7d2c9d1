"""The documents below /openapi: version 3, one for each group version; version 2, one for all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from fleetbus.snapshot import ListQuery, SnapshotReader
from fleetbus_proto.resources import CORE, is_built_in
from fleetbus_query_api.catalog.kinds import VERBS, Kind, group_versions
from fleetbus_query_api.catalog.readable import Selection
from fleetbus_query_api.catalog.served import FLEET, ServedKinds
from fleetbus_query_api.fields.tree_size import count_values
from fleetbus_query_api.kube.negotiation import JSON, negotiate
from fleetbus_query_api.kube.openapi.protobuf import ASKED, SENT, encode_document
from fleetbus_query_api.kube.openapi.schemas import (
    GVK,
    V2_PREFIX,
    V3_PREFIX,
    JsonObject,
    Schemas,
    group_version_kind,
)
from fleetbus_query_api.kube.openapi.validity import is_schema
from fleetbus_query_api.kube.problems import no_path
from fleetbus_query_api.objects.listing import ObjectListing, members_of
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem
from fleetbus_query_api.responses.render import body_of, json_response

_V2: Final = "openapi/v2"
_V3: Final = "openapi/v3"
_INFO: Final = {"title": "Kubernetes, as fleetbus serves it", "version": "1"}
_DEFINITIONS: Final = "apiextensions.k8s.io/customresourcedefinitions"
_MAX_DEFINITIONS: Final = 200
"""Number of custom types that one document explains; the others are objects of any fields."""


_MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of these types' definitions."""
_MAX_VALUES: Final = 500_000
"""Values of their schemas."""


class _Schema(msgspec.Struct, rename={"properties": "openAPIV3Schema"}):
    properties: JsonObject | None = None


class _Version(msgspec.Struct):
    name: str = ""
    schema: _Schema | None = None


class _Spec(msgspec.Struct):
    versions: list[_Version] = []


class _Definition(msgspec.Struct):
    """A CustomResourceDefinition, as far as it explains the type."""

    spec: _Spec

    def schema_of(self, version: str) -> JsonObject | None:
        """The schema of a version; None if it is not there."""
        schemas = (each.schema for each in self.spec.versions if each.name == version)
        return next((schema.properties for schema in schemas if schema is not None), None)

    def drop_malformed(self, most: int) -> int:
        """Drop schemas that no API server would have taken, and those that are too large.

        Args:
            most: values that the schemas may have.

        Returns:
            How many they have.
        """
        total = 0
        for each in self.spec.versions:
            schema = each.schema.properties if each.schema is not None else None
            size = count_values(schema, most=most)
            if total + size > most or (schema is not None and not is_schema(schema)):
                each.schema = None
            else:
                total += size
        return total


_decoder = msgspec.json.Decoder(_Definition)
Definitions = Mapping[str, _Definition]
"""Definitions by name."""


class OpenApi:
    """Answers requests for the documents.

    Args:
        served: the kinds that a user may know of.
        listing: finds which definitions of custom types they may read.
        reader: has these.
    """

    def __init__(
        self, *, served: ServedKinds, listing: ObjectListing, reader: SnapshotReader
    ) -> None:
        self._served = served
        self._listing = listing
        self._reader = reader

    def handles(self, path: str) -> bool:
        """Whether a path is one of these."""
        return path in (_V2, _V3) or path.startswith(f"{_V3}/")

    async def answer(self, user: User, cluster: str, path: str, accept: str) -> Response:
        """Answer a path.

        Raises:
            NotAcceptableProblem: the client accepts neither JSON nor, of version 2, protobuf.
            NotFoundProblem: there is no such document.
            UnavailableProblem: the hub does not decide.
        """
        is_protobuf = path == _V2 and ASKED in accept
        if not is_protobuf:
            negotiate(accept, {})
        kinds = await self._served.find(user, cluster)
        if path == _V3:
            return json_response(msgspec.json.encode(_index(kinds)))
        if path != _V2:
            place = path.removeprefix(f"{_V3}/")
            kinds = [each for each in kinds if _place_of(each.group, each.version) == place]
            if not kinds:
                raise no_path(path)
        bodies = await self._bodies(user, cluster, kinds)
        make = _version_2 if path == _V2 else _version_3
        encode = encode_document if is_protobuf else msgspec.json.encode
        # The table is read by the first who asks, and a document takes tens of milliseconds.
        content = await asyncio.to_thread(lambda: encode(make(kinds, read_definitions(bodies))))
        return json_response(content, media_type=SENT if is_protobuf else JSON)

    async def _bodies(self, user: User, cluster: str, kinds: Sequence[Kind]) -> Mapping[str, bytes]:
        """The definitions of custom types by name, as far as the user may read them."""
        names = {f"{each.plural}.{each.group}" for each in kinds if not is_built_in(each.group)}
        bodies: dict[str, bytes] = {}
        size = 0
        for name in sorted(names)[:_MAX_DEFINITIONS]:
            body = await self._body(user, cluster, name)
            if body and size + len(body) <= _MAX_BYTES:
                bodies[name] = body
                size += len(body)
        return bodies

    async def _body(self, user: User, cluster: str, name: str) -> bytes:
        selection = Selection(
            verb="get",
            resource=_DEFINITIONS,
            clusters=() if cluster == FLEET else (cluster,),
            name=name,
            is_key=True,
        )
        try:
            readable = await self._listing.find(user, selection)
        except NotFoundProblem:
            return b""
        query = ListQuery(
            clusters=members_of(readable),
            resource=_DEFINITIONS,
            namespace="",
            name=name,
            limit=1,
            count=False,
        )
        entries = (await self._reader.list(query)).entries
        return body_of(entries[0]) if entries else b""


def read_definitions(bodies: Mapping[str, bytes]) -> Definitions:
    """Decode definitions, whose schemas take seconds if a member makes them large: in a thread."""
    definitions: dict[str, _Definition] = {}
    left = _MAX_VALUES
    for name, body in bodies.items():
        try:
            definition = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue  # a body that is unknown, or was cut by the watch spec
        left -= definition.drop_malformed(left)
        definitions[name] = definition
    return definitions


def _index(kinds: Sequence[Kind]) -> JsonObject:
    """The index. Its addresses begin at the root of the server that the client believes to reach.

    kubectl puts the path of its own server before them, in every version from 1.27 to 1.33.
    """
    places = [
        _place_of(group, version)
        for group, versions in group_versions(kinds).items()
        for version in versions
    ]
    return {"paths": {place: {"serverRelativeURL": f"/{_V3}/{place}"} for place in places}}


def _place_of(group: str, version: str) -> str:
    return f"api/{version}" if group == CORE else f"apis/{group}/{version}"


def _version_3(kinds: Sequence[Kind], definitions: Definitions) -> JsonObject:
    schemas = Schemas(V3_PREFIX)
    paths: JsonObject = {}
    for each in kinds:
        content = {"schema": {"$ref": V3_PREFIX + _add(schemas, each, definitions)}}
        answer = {"description": "OK", "content": {"application/json": content}}
        paths |= _paths(each, {"200": answer})
    components = {"schemas": schemas.found}
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": components}


def _version_2(kinds: Sequence[Kind], definitions: Definitions) -> JsonObject:
    schemas = Schemas(V2_PREFIX)
    paths: JsonObject = {}
    for each in kinds:
        schema = {"$ref": V2_PREFIX + _add(schemas, each, definitions)}
        paths |= _paths(each, {"200": {"description": "OK", "schema": schema}})
    return {"swagger": "2.0", "info": _INFO, "paths": paths, "definitions": schemas.found}


def _add(schemas: Schemas, kind: Kind, definitions: Definitions) -> str:
    """Add the schema of a kind; returns its name."""
    if is_built_in(kind.group) and (name := schemas.add_built_in(kind)):
        return name
    definition = definitions.get(f"{kind.plural}.{kind.group}")
    schema = definition.schema_of(kind.version) if definition is not None else None
    return schemas.add_custom(kind, schema)


def _paths(kind: Kind, responses: JsonObject) -> JsonObject:
    """The paths of a kind; kubectl finds the kind of a resource by them."""
    place = "/namespaces/{namespace}" if kind.namespaced else ""
    path = f"/{_place_of(kind.group, kind.version)}{place}/{kind.plural}"
    gvk = group_version_kind(kind)

    def operation(verb: str) -> JsonObject:
        head = {"operationId": f"{verb}{kind.kind}", "x-kubernetes-action": verb, GVK: gvk}
        return {"get": {**head, "responses": responses}}

    get, list_, _ = VERBS
    return {path: operation(list_), path + "/{name}": operation(get)}
