"""From the path of a request to what it is about: the way back from `kube.path_of`."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote

from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource

_CORE: Final = "core"
_GROUP_PARTS: Final = 3


class ApiPath(NamedTuple):
    """An object, a collection (without a name), or a part of an object."""

    resource: Resource
    namespace: str
    name: str
    subresource: str


def read_path(path: str) -> ApiPath:
    """Take the path of a resource apart.

    Raises:
        InvalidName: it is none: discovery, `/version` and the like.
    """
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= _GROUP_PARTS:
        group, version, rest = _CORE, parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > _GROUP_PARTS:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise InvalidName(f"{path!r} is not the path of a resource")
    namespace = ""
    # `namespaces/NAME/status` is a part of a namespace, not a resource in it.
    is_namespaced = rest[0] == "namespaces" and rest[2:3] not in ([], ["status"], ["finalize"])
    if is_namespaced:
        namespace, rest = rest[1], rest[2:]
    plural, name, *sub = [*rest, ""][: max(2, len(rest))]
    return ApiPath(Resource(group, version, plural), namespace, name, "/".join(sub))
