"""The requests below /openapi."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver.encoding.negotiation import negotiate
from fleetbus_emulator.apiserver.errors import NotServed
from fleetbus_emulator.apiserver.http.exchange import Request, Response, json_response
from fleetbus_emulator.apiserver.openapi import documents
from fleetbus_emulator.apiserver.openapi.encode import encode

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.served import ServedTypes

V3, V2 = "/openapi/v3", "/openapi/v2"
# Go clients ask for the first form, with the @, and get the second, which is a valid media type.
PROTOBUF_ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PROTOBUF_SENT = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
FOREVER = "public, immutable, max-age=31536000"


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
            name: f"{V3}/{name}?hash={documents.fingerprint(*pair, served)}"
            for name, pair in groups.items()
        }
        paths = {name: {"serverRelativeURL": address} for name, address in addresses.items()}
        return json_response(200, {"paths": paths})
    if place not in groups:
        raise NotServed
    response = Response(200, documents.version_3(*groups[place], served))
    if request.query.get("hash") == documents.fingerprint(*groups[place], served):
        response.headers |= {"Cache-Control": FOREVER, "Vary": "Accept"}
    return response


def _version_2(request: Request, served: ServedTypes) -> Response:
    if request.path.rstrip("/") != V2:
        raise NotServed
    accept = request.headers.get("accept", "")
    if PROTOBUF_ASKED in accept or PROTOBUF_SENT in accept:
        body = encode(documents.version_2(served))
        return Response(200, body, content_type=PROTOBUF_SENT)
    negotiate(accept, {})
    return json_response(200, documents.version_2(served))
