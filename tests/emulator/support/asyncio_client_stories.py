"""Uses of kubernetes_asyncio, as stories that a process of its own plays.

`python asyncio_client_stories.py KUBECONFIG` plays them all and prints which went wrong, as JSON.
A process of its own, because others may have imported kubernetes_asyncio without its typed models;
the import takes two seconds, so all stories share it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

Story = Callable[[Any], Awaitable[None]]
STORIES: dict[str, Story] = {}
NAMESPACE = "default"
SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}}
PODS = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "nginx:1"}]},
}
APPLY = "application/apply-patch+yaml"
PATIENCE_SECONDS = 20


def library(name: str) -> Any:
    """A module of kubernetes_asyncio; most of what is in it has no types that hold."""
    return import_module(f"kubernetes_asyncio.{name}")


def story(function: Story) -> Story:
    STORIES[function.__name__] = function
    return function


def settings(name: str) -> dict[str, Any]:
    return {**SETTINGS, "metadata": {"name": name}}


def web(name: str, **spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": PODS["metadata"]["labels"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": selector, "template": PODS, **spec},
    }


def definition(kind: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    spec = {
        "type": "object",
        "properties": {"size": {"type": "integer"}, "replicas": {"type": "integer"}},
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": scale},
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.stories.example.com"},
        "spec": {
            "group": "stories.example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [version],
        },
    }


async def refused(call: Awaitable[Any]) -> Any:
    """The ApiException that a call ends with."""
    failure = library("client").ApiException

    try:
        answer = await call
    except failure as error:
        return error
    raise AssertionError(f"not refused: {answer}")


async def defined(api: Any, kind: str) -> str:
    """Define a custom resource; returns its plural."""
    client, watch = library("client"), library("watch")

    definitions = client.ApiextensionsV1Api(api)
    definition_object = await definitions.create_custom_resource_definition(definition(kind))
    selector = f"metadata.name={definition_object.metadata.name}"
    listing = definitions.list_custom_resource_definition
    async with watch.Watch().stream(listing, field_selector=selector) as events:
        async for event in events:
            conditions: list[Any] = event["object"].status.conditions or []
            if any(c.type == "Established" and c.status == "True" for c in conditions):
                break
    return definition_object.spec.names.plural


@story
async def the_typed_core_client_creates_patches_replaces_and_deletes(api: Any) -> None:
    client = library("client")

    core = client.CoreV1Api(api)
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="core"), data={"a": "1"})
    config_map = await core.create_namespaced_config_map(NAMESPACE, body)
    assert config_map.metadata.uid
    merged = await core.patch_namespaced_config_map("core", NAMESPACE, {"data": {"b": "2"}})
    assert merged.data == {"a": "1", "b": "2"}
    operations = [{"op": "remove", "path": "/data/a"}]
    patched = await core.patch_namespaced_config_map("core", NAMESPACE, operations)
    assert patched.data == {"b": "2"}
    patched.data = {"c": "3"}
    replaced = await core.replace_namespaced_config_map("core", NAMESPACE, patched)
    assert replaced.data == {"c": "3"}
    assert (
        await refused(core.replace_namespaced_config_map("core", NAMESPACE, config_map))
    ).status == 409
    gone = await core.delete_namespaced_config_map("core", NAMESPACE)
    assert gone.status == "Success"
    error = await refused(core.read_namespaced_config_map("core", NAMESPACE))
    assert (error.status, json.loads(error.body)["reason"]) == (404, "NotFound")


@story
async def every_content_type_of_a_patch_can_be_forced(api: Any) -> None:
    client = library("client")

    apps = client.AppsV1Api(api)
    await apps.create_namespaced_deployment(NAMESPACE, web("types", replicas=1))
    side = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s:1"}]}}}}
    strategic = await apps.patch_namespaced_deployment("types", NAMESPACE, side)
    assert len(strategic.spec.template.spec.containers) == 2
    merge = "application/merge-patch+json"
    merged = await apps.patch_namespaced_deployment("types", NAMESPACE, side, _content_type=merge)
    assert len(merged.spec.template.spec.containers) == 1
    applied = await apps.patch_namespaced_deployment(
        "types",
        NAMESPACE,
        web("types", replicas=2),
        _content_type=APPLY,
        field_manager="story",
        force=True,
    )
    assert applied.spec.replicas == 2
    managers = {(entry.manager, entry.operation) for entry in applied.metadata.managed_fields}
    assert ("story", "Apply") in managers
    options = {"_content_type": APPLY, "field_manager": "other"}
    other = web("types", replicas=3)
    call = apps.patch_namespaced_deployment("types", NAMESPACE, other, **options)
    assert (await refused(call)).status == 409


@story
async def deployments_are_scaled_and_become_ready(api: Any) -> None:
    client, watch = library("client"), library("watch")

    apps, core = client.AppsV1Api(api), client.CoreV1Api(api)
    await apps.create_namespaced_deployment(NAMESPACE, web("ready", replicas=1))
    scale = {"spec": {"replicas": 2}}
    scaled = await apps.patch_namespaced_deployment_scale("ready", NAMESPACE, scale)
    assert (scaled.kind, scaled.spec.replicas) == ("Scale", 2)
    listing, selector = apps.list_namespaced_deployment, "metadata.name=ready"
    async with watch.Watch().stream(listing, NAMESPACE, field_selector=selector) as events:
        async for event in events:
            if event["object"].status.ready_replicas == 2:
                break
    (pod, *_) = (await core.list_namespaced_pod(NAMESPACE, label_selector="app=web")).items
    log = await core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE)
    assert pod.metadata.name in log
    deleted = await core.delete_namespaced_pod(pod.metadata.name, NAMESPACE)
    assert deleted.metadata.name == pod.metadata.name


@story
async def jobs_complete_and_rights_are_stored(api: Any) -> None:
    client, watch = library("client"), library("watch")

    batch, rbac = client.BatchV1Api(api), client.RbacAuthorizationV1Api(api)
    pod = {**PODS["spec"], "restartPolicy": "Never"}
    job = {"metadata": {"name": "hello"}, "spec": {"template": {"spec": pod}}}
    await batch.create_namespaced_job(NAMESPACE, job)
    async with watch.Watch().stream(batch.list_namespaced_job, NAMESPACE) as events:
        async for event in events:
            if event["object"].status.succeeded:
                break
    cron = {"schedule": "@hourly", "suspend": True, "jobTemplate": {"spec": job["spec"]}}
    cron_job = await batch.create_namespaced_cron_job(
        NAMESPACE, {"metadata": {"name": "tick"}, "spec": cron}
    )
    assert cron_job.spec.schedule == "@hourly"
    rule = client.V1PolicyRule(verbs=["get"], api_groups=[""], resources=["pods"])
    meta = client.V1ObjectMeta(name="reader")
    await rbac.create_namespaced_role(NAMESPACE, client.V1Role(metadata=meta, rules=[rule]))
    role = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name="reader")
    subject = client.RbacV1Subject(kind="User", name="ann")
    binding = client.V1RoleBinding(metadata=meta, role_ref=role, subjects=[subject])
    bound = await rbac.create_namespaced_role_binding(NAMESPACE, binding)
    assert bound.subjects[0].api_group == "rbac.authorization.k8s.io"


@story
async def reviews_are_answered(api: Any) -> None:
    client = library("client")

    attributes = client.V1ResourceAttributes(verb="get", resource="pods", namespace=NAMESPACE)
    spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
    review = client.V1SelfSubjectAccessReview(spec=spec)
    answer = await client.AuthorizationV1Api(api).create_self_subject_access_review(review)
    assert answer.status.allowed
    authentication = client.AuthenticationV1Api(api)
    who = await authentication.create_self_subject_review(client.V1SelfSubjectReview())
    assert who.status.user_info.username == "system:admin"
    token = client.V1TokenReview(spec=client.V1TokenReviewSpec(token="wrong"))
    assert not (await authentication.create_token_review(token)).status.authenticated


@story
async def custom_objects_are_created_patched_scaled_and_deleted(api: Any) -> None:
    client = library("client")

    plural = await defined(api, "Gadget")
    place = ("stories.example.com", "v1", NAMESPACE, plural)
    objects = client.CustomObjectsApi(api)
    head = {"apiVersion": "stories.example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}}
    body = {**head, "spec": {"size": 1, "replicas": 1}}
    created = await objects.create_namespaced_custom_object(*place, body)
    assert created["metadata"]["generation"] == 1
    # Without the content type a dict would go out as a JSON patch, which it is not.
    merge = {"_content_type": "application/merge-patch+json"}
    change = {"spec": {"size": 2}}
    merged = await objects.patch_namespaced_custom_object(*place, "g", change, **merge)
    assert merged["spec"] == {"size": 2, "replicas": 1}
    operations = [{"op": "replace", "path": "/spec/size", "value": 3}]
    patched = await objects.patch_namespaced_custom_object(*place, "g", operations)
    assert patched["spec"]["size"] == 3
    status = {"status": {"phase": "Ready"}}
    found = await objects.patch_namespaced_custom_object_status(*place, "g", status, **merge)
    assert found["status"] == {"phase": "Ready"}
    scale = {"spec": {"replicas": 4}}
    scaled = await objects.patch_namespaced_custom_object_scale(*place, "g", scale, **merge)
    assert scaled["spec"]["replicas"] == 4
    applied = await objects.patch_namespaced_custom_object(
        *place,
        "g",
        {**head, "spec": {"size": 5}},
        _content_type=APPLY,
        field_manager="s",
        force=True,
    )
    assert applied["spec"]["size"] == 5
    assert len((await objects.list_namespaced_custom_object(*place))["items"]) == 1
    await objects.delete_namespaced_custom_object(*place, "g")
    assert (await objects.list_namespaced_custom_object(*place))["items"] == []


@story
async def the_dynamic_client_discovers_and_does_it_all(api: Any) -> None:

    await defined(api, "Gizmo")
    dynamic = await library("dynamic").DynamicClient(api)
    maps = await dynamic.resources.get(api_version="v1", kind="ConfigMap")
    await maps.create(body=settings("dynamic"), namespace=NAMESPACE)
    merge = "application/merge-patch+json"
    change = {"metadata": {"name": "dynamic"}, "data": {"b": "2"}}
    patched = await maps.patch(body=change, namespace=NAMESPACE, content_type=merge)
    assert patched.data.to_dict() == {"a": "1", "b": "2"}
    patched.data.a = "3"
    replaced = await maps.replace(body=patched.to_dict(), namespace=NAMESPACE)
    assert replaced.data.a == "3"
    listed = await maps.get(namespace=NAMESPACE, field_selector="metadata.name=dynamic")
    assert [item.metadata.name for item in listed.items] == ["dynamic"]
    await maps.delete(name="dynamic", namespace=NAMESPACE)
    apps = await dynamic.resources.get(api_version="apps/v1", kind="Deployment")
    await apps.create(body=web("dynamic", replicas=1), namespace=NAMESPACE)
    scaled = await apps.scale.patch(
        name="dynamic", namespace=NAMESPACE, body={"spec": {"replicas": 2}}, content_type=merge
    )
    assert scaled.spec.replicas == 2
    gizmos = await dynamic.resources.get(api_version="stories.example.com/v1", kind="Gizmo")
    head = {"apiVersion": "stories.example.com/v1", "kind": "Gizmo", "metadata": {"name": "g"}}
    await gizmos.create(body={**head, "spec": {"size": 1}}, namespace=NAMESPACE)
    assert (await gizmos.get(name="g", namespace=NAMESPACE)).spec.size == 1


@story
async def the_dynamic_client_applies_on_the_server_side(api: Any) -> None:

    dynamic = await library("dynamic").DynamicClient(api)
    maps = await dynamic.resources.get(api_version="v1", kind="ConfigMap")
    body = settings("applied")
    options = {"namespace": NAMESPACE, "field_manager": "one"}
    applied = await maps.server_side_apply(body=body, **options)
    assert applied.metadata.managedFields[0].operation == "Apply"
    other = {**body, "data": {"a": "2"}}
    options = {"namespace": NAMESPACE, "field_manager": "two"}
    # The dynamic client hands out a Status where the typed one raises.
    assert (await maps.server_side_apply(body=other, **options)).code == 409
    forced = await maps.server_side_apply(body=other, force_conflicts=True, **options)
    assert forced.data.a == "2"


@story
async def watches_tell_of_every_change_in_typed_and_dynamic_form(api: Any) -> None:
    client, watch = library("client"), library("watch")

    core = client.CoreV1Api(api)
    listing = core.list_namespaced_config_map
    version = (await listing(NAMESPACE)).metadata.resource_version
    selector = "metadata.name=watched"
    await core.create_namespaced_config_map(NAMESPACE, settings("watched"))
    await core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "2"}})
    await core.delete_namespaced_config_map("watched", NAMESPACE)
    options = {"resource_version": version, "field_selector": selector}
    changes: list[tuple[str, str]] = []
    async with watch.Watch().stream(listing, NAMESPACE, **options) as events:
        async for event in events:
            changes.append((event["type"], event["object"].data["a"]))
            if event["type"] == "DELETED":
                break
    assert changes == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]
    dynamic = await library("dynamic").DynamicClient(api)
    maps = await dynamic.resources.get(api_version="v1", kind="ConfigMap")
    types: list[str] = []
    async for event in maps.watch(namespace=NAMESPACE, timeout=1, **options):
        types.append(event["type"])
        if event["type"] == "DELETED":
            break
    assert types == ["ADDED", "MODIFIED", "DELETED"]


@story
async def a_watch_from_too_old_a_version_is_410(api: Any) -> None:
    client, watch = library("client"), library("watch")

    listing = client.CoreV1Api(api).list_namespaced_secret

    async def read() -> None:
        async with watch.Watch().stream(listing, NAMESPACE, resource_version="1") as events:
            async for _ in events:
                pass

    assert (await refused(read())).status == 410


@story
async def pages_bookmarks_and_ends_of_watches_are_understood(api: Any) -> None:
    client, watch = library("client"), library("watch")

    core = client.CoreV1Api(api)
    for number in range(3):
        await core.create_namespaced_config_map("kube-public", settings(f"page-{number}"))
    first = await core.list_namespaced_config_map("kube-public", limit=2)
    token = first.metadata._continue
    following = await core.list_namespaced_config_map("kube-public", limit=2, _continue=token)
    assert len(first.items + following.items) >= 3
    options = {"allow_watch_bookmarks": True, "timeout_seconds": 1}
    listing = core.list_namespaced_config_map
    async with watch.Watch().stream(listing, "kube-public", **options) as events:
        kinds = [event["type"] async for event in events]
    assert "BOOKMARK" in kinds


@story
async def every_builtin_type_is_listed_in_typed_form(api: Any) -> None:
    client = library("client")

    listed: dict[str, int] = {}
    for name in (
        *("CoreV1Api", "AppsV1Api", "BatchV1Api", "RbacAuthorizationV1Api", "NetworkingV1Api"),
        *("AutoscalingV1Api", "AutoscalingV2Api", "PolicyV1Api", "StorageV1Api", "NodeV1Api"),
        # Without EventsV1Api: its model refuses events without eventTime, on real clusters too.
        *("SchedulingV1Api", "CoordinationV1Api", "DiscoveryV1Api", "ApiextensionsV1Api"),
    ):
        group = getattr(client, name)(api)
        for method in dir(group):
            if not method.startswith("list_") or "namespaced" in method or "http_info" in method:
                continue
            answer = await served(getattr(group, method)())
            if answer is not None:
                listed[method] = len(answer.items)
    assert len(listed) > 35, listed
    assert {method for method, count in listed.items() if count} >= {
        *("list_pod_for_all_namespaces", "list_deployment_for_all_namespaces", "list_node"),
        *("list_event_for_all_namespaces", "list_service_for_all_namespaces"),
    }


async def served(call: Awaitable[Any]) -> Any:
    """The answer; None if the type is not served."""
    failure = library("client").ApiException

    try:
        return await call
    except failure as error:
        if error.status == 404:
            return None
        raise


async def play(path: str) -> dict[str, str]:
    """Play the stories side by side; returns what went wrong, by story."""
    client, config = library("client"), library("config")

    await config.load_kube_config(path)
    wrong: dict[str, str] = {}

    async def run(name: str, played: Story, api: Any) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await played(api)
        except Exception:  # noqa: BLE001 - the story's name belongs to it
            wrong[name] = traceback.format_exc()

    async with client.ApiClient() as api:
        await asyncio.gather(*(run(name, played, api) for name, played in STORIES.items()))
    return wrong


if __name__ == "__main__":
    print(json.dumps(asyncio.run(play(sys.argv[1]))))  # noqa: T201
