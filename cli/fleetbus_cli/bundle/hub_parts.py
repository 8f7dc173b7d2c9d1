"""The parts of a bundle that the hub's API server has: objects, events, pods and their logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from fleetbus.errors import ConfigError, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.requests import Call, path_of
from fleetbus.process.redact import MARK, without_secret_words, without_secrets
from fleetbus_cli.bundle.file import Bundle, clean_lines
from fleetbus_cli.hub import Hub, find_hub

if TYPE_CHECKING:
    from fleetbus.kube.client import Object

_OURS: Final = "app.kubernetes.io/part-of=fleetbus"
_WORKLOADS: Final = ("apps/v1/deployments", "apps/v1/statefulsets")
_PODS: Final = "v1/pods"
_CUSTOM: Final = {
    "clusters": ("fleetbus.dev/v1alpha1/clusters", ()),
    "multiclusterresources": (
        "fleetbus.dev/v1alpha1/multiclusterresources",
        ("template", "templates", "customize", "vars"),
    ),
}
"""The resources of fleetbus, and the fields of their spec that hold objects of users."""
_SETTING: Final = "FLEETBUS_"
_LINES: Final = 1000
_LETTERS: Final = 1000


async def add_hub(bundle: Bundle, given: Hub) -> None:
    """Add what the hub has; what cannot be read is noted."""
    try:
        config = find_hub(given)
    except ConfigError as e:
        bundle.lack("the hub", f"{e}; give --hub-kubeconfig FILE")
        return
    async with KubeClient(config) as hub:
        try:
            version = await hub.get_json("/version")
        except (KubeError, ConfigError) as e:
            bundle.lack("the hub", e)
            return
        bundle.add("hub/version.json", "version of its API server", version)
        await _add_custom(bundle, hub)
        await _add_workloads(bundle, hub)


async def _add_custom(bundle: Bundle, hub: KubeClient) -> None:
    for name, (resource, private) in _CUSTOM.items():
        try:
            objects = [_public(obj, private) for obj in await hub.list(resource)]
        except KubeError as e:
            bundle.lack(name, e)
        else:
            about = "spec and status" if not private else f"without {', '.join(private)}"
            bundle.add(f"hub/{name}.json", f"the {name} of the hub: {about}", objects)


async def _add_workloads(bundle: Bundle, hub: KubeClient) -> None:
    found: list[Object] = []
    pods: list[Object] = []
    try:
        for resource in _WORKLOADS:
            found += await hub.list(resource, label_selector=_OURS)
        pods = await hub.list(_PODS, label_selector=_OURS)
    except KubeError as e:
        bundle.lack("workloads", e)
    if found or pods:
        shown = [_public(_without_env(obj)) for obj in (*found, *pods)]
        about = "Deployments, StatefulSets and pods of fleetbus, with its settings"
        bundle.add("hub/workloads.json", about, shown)
    for namespace in sorted({str(pod["metadata"]["namespace"]) for pod in pods}):
        await _add_events(bundle, hub, namespace)
    for pod in pods:
        async for name, lines in _logs(bundle, hub, pod):
            about = f"the last {_LINES} lines of a container"
            bundle.add(f"logs/{name}.log", about, clean_lines(lines))


async def _add_events(bundle: Bundle, hub: KubeClient, namespace: str) -> None:
    try:
        events = await hub.list("v1/events", namespace)
    except KubeError as e:
        bundle.lack(f"events of {namespace}", e)
        return
    kept = ("type", "reason", "message", "count", "lastTimestamp", "eventTime", "involvedObject")
    shown = [_clean({name: event.get(name) for name in kept}) for event in events]
    bundle.add(f"hub/events-{namespace}.json", f"the Events in {namespace}", shown)


async def _logs(
    bundle: Bundle, hub: KubeClient, pod: Object
) -> AsyncIterator[tuple[str, list[str]]]:
    """The logs of each container of a pod, and of its predecessor if it was restarted."""
    metadata = pod["metadata"]
    namespace, name = str(metadata["namespace"]), str(metadata["name"])
    path = path_of(_PODS, namespace, name) + "/log"
    for status in pod.get("status", {}).get("containerStatuses") or ():
        container = str(status["name"])
        past = (False, True) if status.get("restartCount") else (False,)
        for is_previous in past:
            query = {"container": container, "tailLines": str(_LINES), "timestamps": "true"}
            query |= {"previous": "true"} if is_previous else {}
            label = f"{name}-{container}{'-previous' if is_previous else ''}"
            try:
                text = await hub.request(Call("GET", path, query, accept="*/*"))
            except KubeError as e:
                bundle.lack(f"the log of {label}", e)
            else:
                yield label, text.decode("utf-8", "replace").splitlines()


def _public(obj: Object, private: Iterable[str] = ()) -> Object:
    """An object without managedFields, annotations and some fields of its spec."""
    kept = {k: v for k, v in obj.items() if k in ("apiVersion", "kind", "spec", "status")}
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    names = ("name", "namespace", "labels", "generation", "creationTimestamp", "deletionTimestamp")
    kept["metadata"] = {name: metadata[name] for name in names if name in metadata}
    if isinstance(spec := obj.get("spec"), dict):
        fields = cast("Object", spec)
        kept["spec"] = {k: MARK if k in private else v for k, v in fields.items()}
    return cast("Object", _clean(kept))


def _without_env(tree: Any) -> Any:
    """A tree in which environment variables that are no settings of fleetbus have no values."""
    if isinstance(tree, list):
        return [_without_env(item) for item in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    fields = cast("dict[str, Any]", tree)
    return {
        name: [_setting(variable) for variable in cast("list[Any]", value)]
        if name == "env" and isinstance(value, list)
        else _without_env(value)
        for name, value in fields.items()
    }


def _setting(variable: Any) -> Any:
    fields = cast("dict[str, Any]", variable) if isinstance(variable, dict) else {}
    value = fields.get("value")
    if not isinstance(value, str):
        return fields
    is_ours = str(fields.get("name", "")).startswith(_SETTING)
    return {**fields, "value": without_secrets(value) if is_ours else MARK}


def _clean(tree: Any) -> Any:
    """A tree whose texts have nothing that looks like a credential."""
    if isinstance(tree, str):
        return without_secret_words(tree, limit=_LETTERS) if " " in tree or ":" in tree else tree
    if isinstance(tree, list):
        return [_clean(item) for item in cast("list[Any]", tree)]
    if isinstance(tree, dict):
        return {name: _clean(value) for name, value in cast("dict[str, Any]", tree).items()}
    return tree
