"""scale, binding, eviction, log and token: what is neither the object nor its status."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.encoding.decode import read_delete_options
from fleetbus_emulator.apiserver.encoding.negotiation import shown
from fleetbus_emulator.apiserver.errors import ApiError
from fleetbus_emulator.apiserver.http.exchange import (
    Request,
    Response,
    decode_body,
    json_response,
    parse_merge,
    text_response,
)
from fleetbus_emulator.apiserver.json_tree import mapping, value_at
from fleetbus_emulator.apiserver.read.pod_logs import read_log
from fleetbus_emulator.apiserver.types.resource import ScalePaths
from fleetbus_emulator.apiserver.write import patches, write
from fleetbus_emulator.apiserver.write.delete import delete, parse_options
from fleetbus_emulator.apiserver.write.target import Target
from fleetbus_emulator.apiserver.write.write import WriteOptions

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.auth.service_accounts import ServiceAccounts
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.storage.store import Stored

JsonObject = dict[str, Any]
Operation = Callable[[Target, Request, WriteOptions], Response]
SCALE = ("autoscaling", "Scale")
STREAMS = ("attach", "exec", "portforward")
BUILTIN_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"))
SUCCESS: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class Subresources:
    """The subresources with a form of their own.

    Args:
        state: The cluster.
        accounts: Issues the tokens of ServiceAccounts.
    """

    def __init__(self, state: State, accounts: ServiceAccounts) -> None:
        self._state = state
        self._accounts = accounts

    def operations(self) -> dict[str, dict[str, Operation]]:
        """The operations of each subresource, by verb."""
        return {
            "scale": {
                "get": self.get_scale,
                "update": self.put_scale,
                "patch": self.patch_scale,
            },
            "binding": {"create": self.bind},
            "eviction": {"create": self.evict},
            "log": {"get": self.log},
            **{name: {"get": self.stream, "create": self.stream} for name in STREAMS},
            "token": {"create": self._accounts.request},
        }

    def _stored(self, target: Target) -> Stored:
        stored = self._state.store(target.rtype).get(target.key)
        if stored is None:
            raise errors.not_found(target.rtype, target.name)
        return stored

    # scale --------------------------------------------------------------------------------------

    def get_scale(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """The Scale of an object."""
        del options
        scale = _scale(target, self._stored(target).obj)
        return shown(request, SCALE, scale, self._state.clock())

    def put_scale(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """Set the replicas."""
        body = decode_body(request, "Scale")
        return self._write_scale(target, lambda _: body, options)

    def patch_scale(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """Patch the Scale, with any patch type."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip()
        if content_type not in (accepted := patches.accepted(custom=target.rtype.custom)):
            raise errors.unsupported_media_type(accepted)
        if content_type == patches.JSON_PATCH:
            body = request.body
            return self._write_scale(
                target, lambda scale: patches.apply_json_patch(scale, body), options
            )
        patch = parse_merge(request.body)
        return self._write_scale(target, lambda scale: patches.merge(scale, patch), options)

    def _write_scale(
        self,
        target: Target,
        transform: Callable[[JsonObject], JsonObject],
        options: WriteOptions,
    ) -> Response:
        paths = target.version.scale or BUILTIN_SCALE

        def rescaled(obj: JsonObject) -> JsonObject:
            scale = transform(_scale(target, obj))
            replicas = mapping(scale, "spec").get("replicas", 0)
            _put(obj, paths.spec_replicas, replicas)
            version = mapping(scale, "metadata").get("resourceVersion")
            if version is not None:
                obj["metadata"]["resourceVersion"] = version
            return obj

        outcome = write.update(self._state, target, rescaled, options)
        return json_response(200, _scale(target, outcome.stored.obj))

    # pods ---------------------------------------------------------------------------------------

    def bind(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """Give a pod its node, as the scheduler does."""
        node = mapping(decode_body(request, "Binding"), "target").get("name", "")

        def bound(obj: JsonObject) -> JsonObject:
            present = obj["spec"].get("nodeName")
            if present:
                why = f"pod {target.name} is already assigned to node {present!r}"
                raise errors.conflict(target.rtype, target.name, why)
            obj["spec"]["nodeName"] = node
            return obj

        write.update(self._state, target, bound, options)
        return json_response(201, {**SUCCESS, "code": 201})

    def evict(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """Delete a pod by way of the eviction API."""
        eviction = decode_body(request, "Eviction")
        if mapping(eviction, "metadata").get("name") != target.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        body = mapping(eviction, "deleteOptions")
        read_delete_options(body)
        delete(self._state, target, parse_options({}, body, dry_run=options.dry_run))
        return json_response(201, {**SUCCESS, "code": 201})

    def stream(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """Nothing runs in the containers of simulated pods that one could talk to.

        Raises:
            ApiError: 501, always; 404, there is no such pod.
        """
        del request, options
        self._stored(target)
        message = f"{target.subresource} is not possible: the pods of this cluster are simulated"
        raise ApiError(501, "NotImplemented", message)

    def log(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """The log of a container; nothing really runs in it."""
        del options
        return text_response(200, read_log(self._stored(target).obj, request))


def _scale(target: Target, obj: JsonObject) -> JsonObject:
    paths = target.version.scale or BUILTIN_SCALE
    meta = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: JsonObject = {"replicas": _at(obj, paths.status_replicas) or 0}
    selector = _selector(target, obj, paths)
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in names if name in meta},
        "spec": {"replicas": _at(obj, paths.spec_replicas) or 0},
        "status": status,
    }


def _selector(target: Target, obj: JsonObject, paths: ScalePaths) -> str:
    if target.rtype.custom:
        return str(_at(obj, paths.selector) or "") if paths.selector else ""
    selector: JsonObject = mapping(obj["spec"], "selector")
    labels: JsonObject = mapping(selector, "matchLabels")
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _at(obj: JsonObject, path: tuple[str, ...]) -> Any:
    return value_at(obj, *path)


def _put(obj: JsonObject, path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        obj = obj.setdefault(step, {})
    obj[path[-1]] = orjson.loads(orjson.dumps(value))
