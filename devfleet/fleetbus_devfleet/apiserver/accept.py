"""Content negotiation: which form of an object a client wants."""

from __future__ import annotations

from collections.abc import Mapping
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

Forms = Mapping[str, tuple[str, ...]]
# What the `as` parameter may name, and the versions of each; the first is that of a client that
# names none.
FORMS: Forms = dict.fromkeys(
    ("Table", "PartialObjectMetadata", "PartialObjectMetadataList"), ("v1", "v1beta1")
)
DISCOVERY: Forms = {"APIGroupDiscoveryList": ("v2", "v2beta1")}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The chosen media type; `form` is the `as` parameter, empty for the object itself."""

    media: str = JSON
    form: str = ""
    version: str = ""


def negotiate(accept: str, forms: Forms = FORMS) -> Wanted:
    """Choose the first acceptable clause of an Accept header.

    Raises:
        ApiError: 406, none is acceptable.
    """
    if not accept or accept == JSON:
        return Wanted()
    for clause in accept.split(","):
        wanted = _understood(clause, forms)
        if wanted is not None:
            return wanted
    message = f"only the following media types are accepted: {JSON}, {YAML}, {PROTOBUF}"
    headers = {"Content-Type": PROTOBUF} if accept == PROTOBUF else {}
    raise ApiError(406, "NotAcceptable", message, headers=headers)


def _understood(clause: str, forms: Forms) -> Wanted | None:
    """What a clause asks for; None if that cannot be had."""
    media, *rest = (part.strip() for part in clause.split(";"))
    if media in ("*/*", "application/*"):
        media = JSON
    parameters: dict[str, str] = {}
    for part in rest:
        key, _, value = part.partition("=")
        parameters[key] = value
    form = parameters.get("as", "")
    versions = forms.get(form, ()) if form else ("",)
    version = parameters.get("v", versions[0] if versions else "") if form else ""
    if media not in (JSON, YAML) or version not in versions:
        return None
    return Wanted(media, form, version)


def renderer_for(request: Request, served: Served, state: State) -> tuple[Renderer, Wanted]:
    """The renderer a request asks for."""
    wanted = negotiate(request.headers.get("accept", ""))
    if wanted.form == "Table":
        include = request.query.get("includeObject", "Metadata")
        return TableRenderer(served, state.clock(), include), wanted
    if wanted.form:
        return MetadataRenderer(), wanted
    return PlainRenderer(served), wanted
