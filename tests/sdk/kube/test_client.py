"""The client of one API server, against the emulated one over real HTTP, and through an agent."""

from __future__ import annotations

import asyncio
import base64
import pathlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import trustme
import yaml
from aiohttp import web
from hypothesis import HealthCheck, given, settings

from fleetbus import errors
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection import parameters
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.kube.requests import Call, path_of
from fleetbus_emulator.apiserver import (
    Abort,
    Access,
    ApiServers,
    Cluster,
    Fail,
    Hang,
    serve,
)
from fleetbus_proto.errors import InvalidName
from support.eventually import eventually
from support.objects import config_map
from support.rigs.agents import Connect
from support.rows import each_row
from support.wire.strategies import SEGMENTS

MAPS = "v1/configmaps"
ROLES = "rbac.authorization.k8s.io/v1/clusterroles"


@asynccontextmanager
async def client_of(
    cluster: Cluster, user: dict[str, Any] | None = None, folder: pathlib.Path | None = None
) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers:
        document = servers.kubeconfig()
        document["users"][0]["user"] = user or {}
        source = str((folder or pathlib.Path()) / "kubeconfig")
        async with KubeClient(KubeConfig(yaml.safe_dump(document), source=source)) as client:
            yield client


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("eu1")


@pytest.fixture
async def client(cluster: Cluster, connect: Connect) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers, connect(servers.kubeconfig()) as client:
        yield client


# --- objects ----------------------------------------------------------------------------------


async def test_an_object_is_created_read_changed_and_deleted(client: KubeClient):
    created = await client.create(MAPS, config_map("a"))
    assert await client.get(MAPS, "default", "a") == created
    created["data"] = {"k": "w"}
    updated = await client.update(MAPS, created)
    assert updated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
    patched = await client.patch(MAPS, "default", "a", {"data": {"l": "x"}})
    assert patched["data"] == {"k": "w", "l": "x"}
    patch = [{"op": "remove", "path": "/data/k"}]
    assert (await client.patch(MAPS, "default", "a", patch))["data"] == {"l": "x"}
    assert await client.delete(MAPS, "default", "a")
    assert await client.get(MAPS, "default", "a") is None


async def test_what_is_not_there_is_none_or_false_and_a_write_to_it_is_not_found(
    client: KubeClient,
):
    assert await client.get(MAPS, "default", "a") is None
    with pytest.raises(errors.NotFound, match=r"does not serve GET .*/unheard/a: there is no such"):
        await client.get("example.com/v1/unheard", "default", "a")
    with pytest.raises(errors.NotFound, match=r"or a namespace is missing in metadata \(404\)$"):
        await client.create(MAPS, {"metadata": {"name": "a"}})
    assert not await client.delete(MAPS, "default", "a")
    with pytest.raises(errors.NotFound) as caught:
        await client.update(MAPS, config_map("a"))
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    with pytest.raises(errors.NotFound):
        await client.create(MAPS, config_map("a", namespace="nowhere"))
    with pytest.raises(errors.NotFound):
        await client.list("example.com/v1/unheard")


async def test_an_object_that_is_there_already_is_reported_apart_from_a_conflict(
    client: KubeClient,
):
    created = await client.create(MAPS, config_map("a"))
    with pytest.raises(errors.AlreadyExists):
        await client.create(MAPS, config_map("a"))
    await client.update(MAPS, config_map("a") | {"data": {}})
    with pytest.raises(errors.Conflict) as caught:
        await client.update(MAPS, created)
    assert not isinstance(caught.value, errors.AlreadyExists)


async def test_r4_a_delete_with_another_uid_or_version_is_a_conflict(client: KubeClient):
    created = await client.create(MAPS, config_map("a"))
    for precondition in ({"uid": "another"}, {"resource_version": "1"}):
        with pytest.raises(errors.Conflict):
            await client.delete(MAPS, "default", "a", **precondition)
    metadata = created["metadata"]
    reported = {"uid": metadata["uid"], "resource_version": metadata["resourceVersion"]}
    assert await client.delete(MAPS, "default", "a", **reported)


async def test_an_object_that_is_not_acceptable_is_invalid(client: KubeClient):
    with pytest.raises(errors.Invalid, match="name"):
        await client.create(MAPS, config_map("Not Valid!"))


async def test_a_dry_run_changes_nothing(client: KubeClient, cluster: Cluster):
    await client.create(MAPS, config_map("a"), dry_run=True)
    await client.apply(MAPS, config_map("a"), field_manager="m", dry_run=True)
    assert cluster.list(MAPS, "default") == [
        obj for obj in cluster.list(MAPS, "default") if obj["metadata"]["name"] != "a"
    ]


async def test_d3_an_apply_owns_its_fields_and_names_who_owns_a_disputed_one(client: KubeClient):
    await client.apply(MAPS, config_map("a"), field_manager="one")
    with pytest.raises(errors.Conflict) as caught:
        await client.apply(MAPS, config_map("a", k="w"), field_manager="two")
    (cause,) = caught.value.details["causes"]
    assert cause["field"] == ".data.k"
    assert '"one"' in cause["message"]
    forced = await client.apply(MAPS, config_map("a", k="w"), field_manager="two", force=True)
    assert forced["data"] == {"k": "w"}


async def test_a_status_is_replaced_apart_from_the_rest(client: KubeClient):
    labels = {"app": "web"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    metadata = {"name": "web", "namespace": "default"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    created = await client.create("apps/v1/deployments", deployment)
    created["status"] = {"replicas": 2}
    created["spec"]["replicas"] = 9
    answer = await client.update_status("apps/v1/deployments", created)
    assert (answer["status"]["replicas"], answer["spec"]["replicas"]) == (2, 1)


async def test_the_field_manager_and_the_user_agent_are_ours(client: KubeClient, cluster: Cluster):
    created = await client.create(MAPS, config_map("a"), field_manager="fleetbus-x")
    assert [m["manager"] for m in created["metadata"]["managedFields"]] == ["fleetbus-x"]
    of_agent = "fleetbus-agent"  # it reads which cluster answers
    assert {request.user_agent for request in cluster.requests} - {of_agent} == {"fleetbus"}


# --- names ------------------------------------------------------------------------------------


async def test_b8_every_legal_name_is_found_again(client: KubeClient):
    for name in (
        "system:node",
        "a b",
        "*",
        ">",
        "a?b#c&d=e",
        "a+b",
        "é☃",
        "a\tb\\c",
        "a.b..c",
        '"',
    ):
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
        }
        created = await client.create(ROLES, role)
        assert created["metadata"]["name"] == name
        assert await client.get(ROLES, "", name) == created
        assert await client.delete(ROLES, "", name)


@given(SEGMENTS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_b8_a_path_has_one_segment_for_the_name_whatever_it_holds(name: str):
    assert path_of(ROLES, "", name).count("/") == 5
    assert path_of(MAPS, "ns", name).count("/") == 6


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_would_lead_to_another_path_is_refused(name: str):
    with pytest.raises(InvalidName):
        path_of(MAPS, "default", name)
    with pytest.raises(InvalidName):
        path_of(MAPS, name, "a")


# --- the server -------------------------------------------------------------------------------


async def test_the_server_tells_its_version_and_identity(client: KubeClient, cluster: Cluster):
    assert (await client.get_json("/version"))["gitVersion"].startswith("v1.")
    system = cluster.get("v1/namespaces", None, "kube-system")
    assert system is not None
    assert await client.kube_system_uid() == system["metadata"]["uid"]


async def test_a_kind_leads_to_its_resource(client: KubeClient):
    discovered = await client.discover("apps/v1", "Deployment")
    assert discovered is not None
    assert str(discovered.resource) == "apps/v1/deployments"
    assert await client.discover("apps/v1", "Unheard") is None


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.Invalid),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (409, errors.Conflict),
        (410, errors.Gone),
        (429, errors.TooManyRequests),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (504, errors.ServerError),
        (418, errors.KubeError),
    ],
)
async def test_every_refusal_has_its_type_and_keeps_the_servers_message(
    client: KubeClient, cluster: Cluster, status: int, kind: type[errors.KubeError]
):
    cluster.faults.add(Fail(status, message="not today"), resource="configmaps")
    with pytest.raises(errors.KubeError) as caught:
        await client.get(MAPS, "default", "a")
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert "not today" in str(caught.value)


@pytest.mark.parametrize("status", [429, 503])
async def test_w19_the_wait_that_the_server_asks_for_is_reported(
    client: KubeClient, cluster: Cluster, status: int
):
    cluster.faults.add(Fail(status, retry_after=timedelta(seconds=7)))
    with pytest.raises(errors.KubeError) as caught:
        await client.get_json("/version")
    assert caught.value.retry_after == timedelta(seconds=7)


def test_w19_no_server_is_left_alone_for_ever():
    error = errors.from_status(503, {}, retry_after=float("inf"))
    assert error.retry_after == timedelta(hours=1)


async def test_a_broken_connection_is_unreachable_and_the_next_request_works(
    client: KubeClient, cluster: Cluster
):
    # aiohttp itself repeats a read once, because an idle connection may have ended meanwhile.
    cluster.faults.add(Abort(), verb="get", resource="configmaps", count=2)
    with pytest.raises(errors.Unreachable, match="no answer from the API server"):
        await client.get(MAPS, "default", "a")
    assert await client.get(MAPS, "default", "a") is None


async def test_a_server_that_never_answers_is_unreachable_after_the_deadline(
    client: KubeClient, cluster: Cluster
):
    cluster.faults.add(Hang())
    with pytest.raises(errors.Unreachable):
        await client.request(Call("GET", "/version", within=timedelta(milliseconds=100)))


async def test_a_certificate_or_a_port_that_is_refused_is_named_in_words(tmp_path: pathlib.Path):
    authority, key = trustme.CA(), tmp_path / "key.pem"
    issued = authority.issue_cert("elsewhere.example")
    key.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(key)
    server = await asyncio.start_server(lambda _, end: end.close(), "127.0.0.1", 0, ssl=serving)
    port = server.sockets[0].getsockname()[1]
    trusted = base64.b64encode(authority.cert_pem.bytes()).decode()
    document = {
        "current-context": "a",
        "clusters": [
            {
                "name": "a",
                "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "certificate-authority-data": trusted,
                },
            }
        ],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }
    for expected in ("the certificate of .* is refused: IP address mismatch", "Connection refused"):
        async with KubeClient(KubeConfig(yaml.safe_dump(document))) as client:
            with pytest.raises(errors.Unreachable, match=expected) as caught:
                await client.get_json("/version")
        assert "object at" not in str(caught.value)
        server.close()
        await server.wait_closed()


async def test_a_kubeconfig_that_is_wrong_is_a_configuration_error():
    async with KubeClient(KubeConfig("clusters: []", source="my.kubeconfig")) as client:
        with pytest.raises(errors.ConfigError, match=r"^my\.kubeconfig: "):
            await client.get_json("/version")


@each_row(
    ("status", "text", "kind"),
    [
        (200, "<html>log in first</html>", errors.Unreachable),
        (200, "", errors.Unreachable),
        (200, "[]", errors.Unreachable),
        (200, '{"half": ', errors.Unreachable),
        (502, "<html>bad gateway</html>", errors.ServerError),
        (403, '"just text"', errors.Forbidden),
        (404, "", errors.NotFound),
        (500, '{"message": 7, "reason": null, "details": []}', errors.ServerError),
    ],
)
async def test_an_answer_that_no_api_server_gives_is_an_error_of_ours(
    connect: Connect, status: int, text: str, kind: type[errors.KubeError]
):
    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=text, content_type="text/html")

    async with plain_server(connect, answer) as client:
        with pytest.raises(errors.KubeError) as caught:
            await client.get_json("/version")
        assert type(caught.value) is kind
        assert str(caught.value)


@each_row("status", [301, 302, 307, 308, 304])
async def test_s7_a_server_cannot_send_us_elsewhere(connect: Connect, status: int):
    paths: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        paths.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with plain_server(connect, answer) as client:
        with pytest.raises(errors.KubeError) as caught:
            await client.get_json("/version")
    assert caught.value.status == status
    assert [path for path in paths if path != KUBE_SYSTEM] == ["/version"]


async def test_a_list_without_items_is_empty(connect: Connect):
    async def answer(_request: web.BaseRequest) -> web.Response:
        text = '{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": null}'
        return web.Response(text=text, content_type="application/json")

    async with plain_server(connect, answer) as client:
        assert await client.list(MAPS) == []


@asynccontextmanager
async def plain_server(connect: Connect, answer: Any) -> AsyncGenerator[KubeClient]:
    """A client of something that is no API server."""
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    document = {
        "current-context": "a",
        "clusters": [
            {"name": "a", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}
        ],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }
    try:
        async with connect(document) as client:
            yield client
    finally:
        await runner.cleanup()


# --- credentials ------------------------------------------------------------------------------


async def test_a_token_is_shown_to_the_server_and_a_wrong_one_is_unauthorized():
    cluster = Cluster("eu1", tokens={"good": "ann"})
    async with client_of(cluster, {"token": "good"}) as client:
        await client.get_json("/version")
    async with client_of(cluster, {"token": "bad"}) as client:
        with pytest.raises(errors.Unauthorized):
            await client.list(MAPS)


async def test_a_token_that_ran_out_is_read_anew_without_an_error(tmp_path: pathlib.Path):
    (tmp_path / "token").write_text("old\n")
    cluster = Cluster("eu1", tokens={"new": "ann"})
    async with client_of(cluster, {"tokenFile": "token"}, tmp_path) as client:
        with pytest.raises(errors.Unauthorized):
            await client.list(MAPS)
        (tmp_path / "token").write_text("new\n")
        # Many at once: each may be the one that finds the old token.
        lists = await asyncio.gather(*[client.list(MAPS) for _ in range(20)])
    assert len(lists) == 20


async def test_a_certificate_authority_of_the_kubeconfig_is_trusted():
    async with serve([Cluster("eu1")], tls=True) as servers:
        document = yaml.safe_dump(servers.kubeconfig())
        async with KubeClient(KubeConfig(document)) as client:
            assert await client.get_json("/version")


async def test_an_unknown_certificate_is_unreachable_unless_trust_is_waived():
    async with serve([Cluster("eu1")], tls=True) as servers:
        document = servers.kubeconfig()
        del document["clusters"][0]["cluster"]["certificate-authority-data"]
        strict = KubeConfig(yaml.safe_dump(document))
        async with KubeClient(strict) as client:
            with pytest.raises(errors.Unreachable, match="certificate"):
                await client.get_json("/version")
        async with KubeClient(replace(strict, insecure=True)) as client:
            assert await client.get_json("/version")


async def test_the_token_of_a_service_account_is_read_anew_when_it_ran_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    users: list[str] = []

    def authorize(access: Access) -> bool:
        users.append(access.user.name)
        return True

    cluster = Cluster("eu1", tokens={"first": "before", "second": "after"}, authorize=authorize)
    async with serve([cluster], tls=True) as servers:
        _become_a_pod(tmp_path, monkeypatch, servers, "first")
        async with KubeClient(None) as client:
            await client.list(MAPS)
            (tmp_path / "token").write_text("second")  # as the kubelet does, before it runs out
            cluster.faults.add(Fail(401), count=1)
            await client.list(MAPS)
    assert users == ["before", "after"]


def _become_a_pod(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, servers: ApiServers, token: str
) -> None:
    where = servers.kubeconfig()["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(base64.b64decode(where["certificate-authority-data"]))
    (folder / "token").write_text(token)
    host, _, port = str(where["server"]).removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(parameters, "SERVICE_ACCOUNT", folder)


# --- closing ----------------------------------------------------------------------------------


async def test_a_client_closed_under_a_running_request_is_unreachable_not_a_crash(
    cluster: Cluster, client: KubeClient
) -> None:
    rule = cluster.faults.add(Hang())
    reading = asyncio.create_task(client.get(MAPS, "default", "a"))
    await eventually(lambda: rule.hits)
    await client.aclose()
    with pytest.raises(errors.Unreachable):
        await reading


async def test_a_closed_client_refuses_and_opens_nothing(client: KubeClient) -> None:
    await client.aclose()
    with pytest.raises(errors.Unreachable, match="closed"):
        await client.get(MAPS, "default", "a")
