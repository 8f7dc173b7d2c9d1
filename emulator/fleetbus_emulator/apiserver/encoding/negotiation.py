"""Content negotiation: the media type and kind in which a client accepts an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.columns import BUILTIN_COLUMNS, Row, tables
from fleetbus_emulator.apiserver.encoding.render import (
    MetadataRenderer,
    PlainRenderer,
    Renderer,
    TableRenderer,
)
from fleetbus_emulator.apiserver.errors import ApiError, bad_request
from fleetbus_emulator.apiserver.http.exchange import (
    JSON,
    PROTOBUF,
    YAML,
    Request,
    Response,
    json_response,
)

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
Forms = Mapping[str, tuple[str, ...]]
# What the `as` parameter may name, and the versions of each; the first is that of a client that
# names none.
TABLE, METADATA, METADATA_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
FORMS: Forms = dict.fromkeys((TABLE, METADATA, METADATA_LIST), ("v1", "v1beta1"))
INCLUDED = ("None", "Metadata", "Object")
DISCOVERY: Forms = {"APIGroupDiscoveryList": ("v2", "v2beta1")}


@dataclass(frozen=True, slots=True)
class MediaType:
    """The chosen media type; `form` is the `as` parameter, empty for the object itself."""

    media: str = JSON
    form: str = ""
    version: str = ""


def negotiate(accept: str, forms: Forms = FORMS) -> MediaType:
    """Choose the first acceptable clause of an Accept header.

    Raises:
        ApiError: 406, none is acceptable.
    """
    if not accept or accept == JSON:
        return MediaType()
    for clause in accept.split(","):
        media_type = _parse_clause(clause, forms)
        if media_type is not None:
            return media_type
    message = f"only the following media types are accepted: {JSON}, {YAML}, {PROTOBUF}"
    headers = {"Content-Type": PROTOBUF} if accept == PROTOBUF else {}
    raise ApiError(406, "NotAcceptable", message, headers=headers)


def _parse_clause(clause: str, forms: Forms) -> MediaType | None:
    """Parse a clause; None if it is not acceptable."""
    media, *options = (piece.strip() for piece in clause.split(";"))
    if media in ("*/*", "application/*"):
        media = JSON
    parameters: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        parameters[key] = value
    form = parameters.get("as", "")
    versions = forms.get(form, ()) if form else ("",)
    version = parameters.get("v", versions[0] if versions else "") if form else ""
    if media not in (JSON, YAML) or version not in versions:
        return None
    return MediaType(media, form, version)


def renderer_for(request: Request, served: Served, state: State) -> tuple[Renderer, MediaType]:
    """The renderer a request asks for."""
    media_type = negotiate(request.headers.get("accept", ""))
    if media_type.form == TABLE:
        table = TableRenderer(served, state.clock, included(request), media_type.version)
        return table, media_type
    if media_type.form:
        return MetadataRenderer(media_type.version), media_type
    return PlainRenderer(served), media_type


def check_list_kind(media_type: MediaType, served: Served, *, is_list: bool) -> None:
    """Refuse the metadata of a list for one object, and of one object for a list.

    Raises:
        ApiError: 406.
    """
    if media_type.form != (METADATA if is_list else METADATA_LIST):
        return
    rtype = served.rtype
    names = (rtype.list_kind, "a list") if is_list else (rtype.kind, "not a list")
    actual = f"the requested object is {names[1]} (*{served.version.name}.{names[0]})"
    raise ApiError(406, "NotAcceptable", f"you requested {media_type.form}, but {actual}")


def included(request: Request) -> str:
    """The includeObject parameter: how much of its object a row of a Table holds.

    Raises:
        ApiError: 400, something that there is not.
    """
    include = request.query.get("includeObject") or "Metadata"
    if include not in INCLUDED:
        raise bad_request(f'unrecognized includeObject value: "{include}"')
    return include


def shown(request: Request, kind: tuple[str, str], obj: JsonObject, now: datetime) -> Response:
    """A document that is not stored, such as a Scale: itself, or the Table of its row."""
    media_type = negotiate(request.headers.get("accept", ""))
    if media_type.form != TABLE:
        return json_response(200, obj)
    printed = BUILTIN_COLUMNS[kind]
    row: JsonObject = {"cells": printed.cells(Row(obj, now))}
    included_object = {
        "Metadata": tables.partial_metadata(obj, media_type.version),
        "Object": obj,
    }.get(included(request))
    row |= {"object": included_object} if included_object else {}
    metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
    return json_response(200, tables.table(printed.columns, [row], metadata, media_type.version))
