"""Discovery: what is served, in the legacy and in the aggregated form, and the health paths."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.auth.reviews import VIRTUAL_TYPES
from fleetbus_emulator.apiserver.encoding.negotiation import DISCOVERY, negotiate
from fleetbus_emulator.apiserver.errors import ApiError, NotServed
from fleetbus_emulator.apiserver.http.exchange import (
    Request,
    Response,
    json_response,
    text_response,
)
from fleetbus_emulator.apiserver.kubernetes_version import VERSION
from fleetbus_emulator.apiserver.types.resource import ALL_VERBS, SUBRESOURCE_VERBS

if TYPE_CHECKING:
    from collections.abc import Container

    from fleetbus_emulator.apiserver.types.served import Served, ServedTypes

JsonObject = dict[str, Any]
HEALTH = ("/healthz", "/livez", "/readyz")
HEALTH_CHECKS = ("ping",)
# Kubernetes lists its own groups in this order, and all others by name behind them. A client that
# finds a resource's name in several groups takes the first.
FIRST_GROUPS: Final = (
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
)
# The subresources that are not get, patch and update of the type itself: kind, group, verbs.
SPECIAL: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "scale": ("Scale", "autoscaling", "v1", SUBRESOURCE_VERBS),
    "binding": ("Binding", "", "", ("create",)),
    "eviction": ("Eviction", "policy", "v1", ("create",)),
    "log": ("Pod", "", "", ("get",)),
    "attach": ("PodAttachOptions", "", "", ("create", "get")),
    "exec": ("PodExecOptions", "", "", ("create", "get")),
    "portforward": ("PodPortForwardOptions", "", "", ("create", "get")),
    "token": ("TokenRequest", "authentication.k8s.io", "v1", ("create",)),
    "finalize": ("Namespace", "", "", ("update",)),
}


def answer(request: Request, served: ServedTypes) -> Response:
    """Answer a path that names no resource.

    Raises:
        NotServed: The path is unknown.
    """
    path = request.path.rstrip("/") or "/"
    if path.startswith(HEALTH):
        return _health(request, path)
    if path == "/version":
        return json_response(200, VERSION)
    if path == "/":
        return json_response(200, {"paths": _paths(served)})
    document = _aggregated(request, path, served) or _legacy(path, served)
    if document is None:
        raise unknown_path(path)
    return document if isinstance(document, Response) else json_response(200, document)


def unknown_path(path: str) -> ApiError:
    """404 for a path that is not served: a Status below the groups that are built in."""
    first, _, below = path.strip("/").partition("/")
    is_own = first == "api" or (first == "apis" and below.partition("/")[0] in FIRST_GROUPS)
    return errors.not_routed() if is_own and below else NotServed()


def _health(request: Request, path: str) -> Response:
    kind, _, check = path.strip("/").partition("/")
    if check and check not in HEALTH_CHECKS:
        raise NotServed
    if "verbose" not in request.query or check:
        return text_response(200, "ok")
    lines = [*(f"[+]{name} ok" for name in HEALTH_CHECKS), f"{kind} check passed"]
    return text_response(200, "\n".join(lines) + "\n")


def _paths(served: ServedTypes) -> list[str]:
    paths = ["/api", "/api/v1", "/apis"]
    for group, versions in served.groups().items():
        paths += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
    return sorted([*paths, *HEALTH, "/openapi/v2", "/openapi/v3", "/version"])


def _groups(served: ServedTypes) -> dict[str, list[str]]:
    groups = served.groups()
    for group, version, *_ in VIRTUAL_TYPES:
        groups.setdefault(group, [version])
    rank = {group: index for index, group in enumerate(FIRST_GROUPS)}
    return dict(sorted(groups.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


# legacy -----------------------------------------------------------------------------------------


def _legacy(path: str, served: ServedTypes) -> JsonObject | None:
    parts = path.strip("/").split("/")
    if parts[0] == "apis":
        return _legacy_groups(parts[1:], served)
    if path == "/api":
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}
        versions = {"kind": "APIVersions", "versions": ["v1"]}
        return {**versions, "serverAddressByClientCIDRs": [address]}
    return _resource_list("", "v1", served) if path == "/api/v1" else None


def _legacy_groups(segments: list[str], served: ServedTypes) -> JsonObject | None:
    """Answer /apis, /apis/GROUP and /apis/GROUP/VERSION."""
    groups = _groups(served)
    match segments:
        case []:
            listed = [_group(name, versions) for name, versions in groups.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case [group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
        case [group, version] if version in groups.get(group, []):
            return _resource_list(group, version, served)
        case _:
            return None


def _group(name: str, versions: list[str]) -> JsonObject:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(group: str, version: str, served: ServedTypes) -> JsonObject:
    resources: list[JsonObject] = []
    for entry in served.in_version(group, version):
        resources.append(_resource(entry))
        resources += [_subresource(entry, name) for name in _in_order(entry)]
    for virtual_group, virtual_version, plural, kind, namespaced in VIRTUAL_TYPES:
        if (virtual_group, virtual_version) == (group, version):
            resources.append(
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "namespaced": namespaced,
                    "kind": kind,
                    "verbs": ["create"],
                }
            )
    name = f"{group}/{version}" if group else version
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name}
    return {**head, "resources": resources}


CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


def _in_order(entry: Served) -> list[str]:
    """The subresources by name; those of custom resources status first, as a real server."""
    return sorted(entry.version.subresources, reverse=entry.rtype.custom)


def _resource(entry: Served) -> JsonObject:
    rtype = entry.rtype
    verbs = CUSTOM_VERBS if rtype.custom else ALL_VERBS
    resource: JsonObject = {
        "name": rtype.plural,
        "singularName": rtype.singular,
        "namespaced": rtype.namespaced,
        "kind": rtype.kind,
        "verbs": [v for v in verbs if v != "deletecollection" or rtype.deletes_collection],
    }
    if rtype.short_names:
        resource["shortNames"] = list(rtype.short_names)
    if rtype.categories:
        resource["categories"] = list(rtype.categories)
    return resource


def _subresource(entry: Served, name: str) -> JsonObject:
    kind, group, version, verbs = SPECIAL.get(name, (entry.rtype.kind, "", "", SUBRESOURCE_VERBS))
    resource: JsonObject = {
        "name": f"{entry.rtype.plural}/{name}",
        "singularName": "",
        "namespaced": entry.rtype.namespaced,
        "kind": kind,
        "verbs": list(verbs),
    }
    if version:
        resource |= {"group": group, "version": version}
    return resource


# aggregated -------------------------------------------------------------------------------------


def _aggregated(request: Request, path: str, served: ServedTypes) -> Response | None:
    """The aggregated form of /api and /apis, if the client prefers it."""
    if path not in ("/api", "/apis"):
        return None
    media_type = negotiate(request.headers.get("accept", ""), DISCOVERY)
    if not media_type.form:
        return None
    groups: dict[str, list[str]] = {"": ["v1"]} if path == "/api" else _groups(served)
    items = [_discovery_group(name, versions, served) for name, versions in groups.items()]
    metadata: JsonObject = {}
    document = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{media_type.version}",
        "metadata": metadata,
        "items": items,
    }
    media = (
        f"application/json;g=apidiscovery.k8s.io;v={media_type.version};as=APIGroupDiscoveryList"
    )
    return _tagged(request, Response(200, orjson.dumps(document), content_type=media))


def _tagged(request: Request, response: Response) -> Response:
    """The response with an entity tag, or 304 for a client that has it already."""
    tag = f'"{hashlib.sha256(response.body).hexdigest().upper()}"'
    response.headers |= {"Cache-Control": "public", "ETag": tag, "Vary": "Accept"}
    if tag in request.headers.get("if-none-match", ""):
        response.status, response.body = 304, b""
    return response


def _discovery_group(group: str, versions: list[str], served: ServedTypes) -> JsonObject:
    listed = [
        {
            "version": version,
            "resources": _discovery_resources(_resource_list(group, version, served)),
            "freshness": "Current",
        }
        for version in versions
    ]
    return {"metadata": {"name": group} if group else {}, "versions": listed}


def _discovery_resources(listed: JsonObject) -> list[JsonObject]:
    """Nest the legacy list's subresources below their resources."""
    group, _, version = listed["groupVersion"].rpartition("/")
    by_plural: dict[str, JsonObject] = {}
    for entry in listed["resources"]:
        kind = {
            "group": entry.get("group", group),
            "version": entry.get("version", version),
            "kind": entry["kind"],
        }
        plural, _, sub = entry["name"].partition("/")
        if sub:
            nested = {"subresource": sub, "responseKind": kind, "verbs": entry["verbs"]}
            by_plural[plural].setdefault("subresources", []).append(nested)
            continue
        by_plural[plural] = {
            "resource": plural,
            "responseKind": kind,
            "scope": "Namespaced" if entry["namespaced"] else "Cluster",
            "singularResource": entry["singularName"],
            "verbs": entry["verbs"],
        }
        for name in ("shortNames", "categories"):
            if name in entry:
                by_plural[plural][name] = entry[name]
    return list(by_plural.values())


def unconditional(request: Request) -> Request:
    """The request of a client that has no document yet, and so gets one."""
    headers = {name: value for name, value in request.headers.items() if name != "if-none-match"}
    return replace(request, headers=headers)


def with_stale(request: Request, response: Response, groups: Container[str | None]) -> Response:
    """The aggregated document with groups whose API server is down.

    It has an entity tag of its own: clients that know the document of better days read this one.
    """
    document: JsonObject = orjson.loads(response.body)
    for item in document["items"]:
        if item["metadata"].get("name") in groups:
            versions = [listed["version"] for listed in item["versions"]]
            item["versions"] = [{"version": version, "freshness": "Stale"} for version in versions]
    stale = Response(response.status, orjson.dumps(document), content_type=response.content_type)
    return _tagged(request, stale)
