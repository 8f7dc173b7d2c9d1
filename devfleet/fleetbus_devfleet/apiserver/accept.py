"""Content negotiation: which form of an object a client wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetbus_devfleet.apiserver.errors import ApiError
from fleetbus_devfleet.apiserver.exchange import JSON, PROTOBUF, YAML
from fleetbus_devfleet.apiserver.render import (
    MetadataRenderer,
    PlainRenderer,
    Renderer,
    TableRenderer,
)

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver.exchange import Request
    from fleetbus_devfleet.apiserver.served import Served
    from fleetbus_devfleet.apiserver.state import State

FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
DISCOVERY = ("APIGroupDiscoveryList",)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The chosen media type; `form` is the `as` parameter, empty for the object itself."""

    media: str = JSON
    form: str = ""
    version: str = ""


def negotiate(accept: str, forms: tuple[str, ...] = FORMS) -> Wanted:
    """Choose the first acceptable clause of an Accept header.

    Raises:
        ApiError: 406, none is acceptable.
    """
    if not accept or accept == JSON:
        return Wanted()
    for clause in accept.split(","):
        media, *rest = (part.strip() for part in clause.split(";"))
        parameters: dict[str, str] = {}
        for part in rest:
            key, _, value = part.partition("=")
            parameters[key] = value
        form = parameters.get("as", "")
        if form and form not in forms:
            continue
        if media in (JSON, "*/*", "application/*"):
            return Wanted(JSON, form, parameters.get("v", ""))
        if media == YAML:
            return Wanted(YAML, form, parameters.get("v", ""))
    message = f"only the following media types are accepted: {JSON}, {YAML}, {PROTOBUF}"
    headers = {"Content-Type": PROTOBUF} if accept == PROTOBUF else {}
    raise ApiError(406, "NotAcceptable", message, headers=headers)


def renderer_for(request: Request, served: Served, state: State) -> tuple[Renderer, Wanted]:
    """The renderer a request asks for."""
    wanted = negotiate(request.headers.get("accept", ""))
    if wanted.form == "Table":
        include = request.query.get("includeObject", "Metadata")
        return TableRenderer(served, state.clock(), include), wanted
    if wanted.form:
        return MetadataRenderer(), wanted
    return PlainRenderer(served), wanted
