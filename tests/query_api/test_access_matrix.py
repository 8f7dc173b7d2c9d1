"""Rules A1 to A3: every endpoint of a real process, with every kind of credential.

Without the call of `authorise` in a route, its rows of users without rights fail; a route without a
row fails the first test.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_stream
from fleetbus.process.clock import rfc3339
from fleetbus_query_api.access.authorise import OpenAccess
from fleetbus_query_api.app import HistorySources, create_app
from fleetbus_query_api.limits.gate import WRITES
from fleetbus_query_api.past.connection import HistoryConnection
from fleetbus_query_api.settings import QueryApiSettings
from support.processes.query_api import start_query_api
from support.rigs.secured_api import grant, rule, secured_api
from support.stores.recorded_past import LIMITS, RecordedPast, pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import httpx
    from redis.asyncio import Redis

    from fleetbus.bus.connection import Bus
    from support.rigs.secured_api import SecuredApi

CLUSTERS = "/fleet/v1/clusters"
LIST = "/fleet/v1/resources/pods"
COUNTS = "/fleet/v1/counts/pods"
V1 = "/v1/list"
EU1, US1, NONE, ALL = (f"/kube/{name}" for name in ("eu1", "us1", "none", "-"))
IN_PROD = "/api/v1/namespaces/prod"
EVENTS = "/fleet/v1/events?resource=pods&resourceVersion=0"
REVIEWS = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
WATCH = "?watch=1&timeoutSeconds=1"

TYPES = ["configmaps", "pods"]
AGES = "2020-01-01T00:00:00Z"
OF_EU1 = ["eu1/gone", "eu1/prod-1"]
CHANGES = "/fleet/v1/changes?since=BEGIN"
"""BEGIN is a time before `prod-1` was added to each cluster, and `gone` deleted."""

# path, and what it answers: without rights, with a right on pods in prod of eu1, with all rights.
# A number is a status, anything else what is shown.
MATRIX: list[tuple[str, Any, Any, Any]] = [
    ("/openapi.json", 200, 200, 200),
    ("/nowhere", 404, 404, 404),
    (CLUSTERS, [], [], ["eu1", "us1"]),
    (f"{CLUSTERS}/eu1", 404, 404, 200),
    (f"{CLUSTERS}/none", 404, 404, 404),
    (LIST, 404, 404, ["eu1/prod-1", "eu1/test-1", "us1/prod-1", "us1/test-1"]),
    (f"{LIST}?namespace=prod", 404, ["eu1/prod-1"], ["eu1/prod-1", "us1/prod-1"]),
    (f"{LIST}?namespace=prod&cluster=us1", 404, 404, ["us1/prod-1"]),
    (f"{LIST}?namespace=prod&cluster=none", 404, 404, []),
    (f"{LIST}?namespace=test", 404, 404, ["eu1/test-1", "us1/test-1"]),
    (f"{LIST}?view=table", 404, 404, ["eu1/prod-1", "eu1/test-1", "us1/prod-1", "us1/test-1"]),
    (f"{LIST}?view=table&namespace=prod", 404, ["eu1/prod-1"], ["eu1/prod-1", "us1/prod-1"]),
    (f"{LIST}?view=table&namespace=prod&cluster=us1", 404, 404, ["us1/prod-1"]),
    ("/fleet/v1/version", 200, 200, 200),
    # Who sees no cluster sees the built-in types that some cluster watches.
    ("/fleet/v1/resources", TYPES, TYPES, TYPES),
    (f"{LIST}?fieldSelector=metadata.namespace=prod", 404, 404, ["eu1/prod-1", "us1/prod-1"]),
    (
        f"{LIST}?fieldSelector=status.phase!=Failed&sort=-metadata.name&namespace=prod",
        404,
        ["eu1/prod-1"],
        ["eu1/prod-1", "us1/prod-1"],
    ),
    (COUNTS, 404, 404, {"total": 4}),
    (f"{COUNTS}?namespace=prod&by=cluster", 404, {"eu1": 1}, {"eu1": 1, "us1": 1}),
    (f"{COUNTS}?namespace=test&by=metadata.name", 404, 404, {"test-1": 2}),
    (f"{COUNTS}?namespace=prod&by=spec.nodeName&cluster=us1", 404, 404, {None: 1}),
    ("/fleet/v1/counts/widgets?namespace=prod", 404, 404, 404),
    ("/fleet/v1/outliers/configmaps", 404, 404, []),
    ("/fleet/v1/outliers/pods?namespace=prod", 404, [], []),
    ("/fleet/v1/where?name=prod-1", [], [], ["eu1/prod-1", "us1/prod-1"]),
    (
        "/fleet/v1/where?name=prod-1&namespace=prod",
        [],
        ["eu1/prod-1"],
        ["eu1/prod-1", "us1/prod-1"],
    ),
    ("/fleet/v1/where?name=test-1&namespace=prod", [], [], []),
    ("/fleet/v1/where?name=prod-c&cluster=us1", [], [], ["us1/prod-c"]),
    ("/fleet/v1/owners/eu1/pods/prod/prod-1", 404, [], []),
    ("/fleet/v1/owners/us1/pods/prod/prod-1", 404, 404, []),
    ("/fleet/v1/owners/eu1/pods/prod/none", 404, 404, 404),
    ("/fleet/v1/children/eu1/pods/prod/prod-1", 404, [], []),
    ("/fleet/v1/children/us1/pods/prod/prod-1", 404, 404, []),
    ("/fleet/v1/children/eu1/pods/test/test-1", 404, 404, []),
    ("/fleet/v1/history", 200, 200, 200),
    (f"{LIST}?asOf=0s&namespace=prod", 404, ["eu1/prod-1"], ["eu1/prod-1", "us1/prod-1"]),
    (f"{LIST}?asOf=0s&view=table&namespace=prod&cluster=us1", 404, 404, ["us1/prod-1"]),
    ("/fleet/v1/deleted/pods", 404, 404, ["eu1/gone", "us1/gone"]),
    ("/fleet/v1/deleted/pods?namespace=prod", 404, ["eu1/gone"], ["eu1/gone", "us1/gone"]),
    ("/fleet/v1/deleted/pods?namespace=prod&cluster=us1", 404, 404, ["us1/gone"]),
    ("/fleet/v1/timeline/eu1/pods/prod/gone", 404, 200, 200),
    ("/fleet/v1/timeline/us1/pods/prod/gone", 404, 404, 200),
    ("/fleet/v1/timeline/eu1/pods/prod/none", 404, 404, 404),
    (f"/fleet/v1/changes?since={AGES}", 410, 410, 410),
    (CHANGES, [], [], ["eu1/gone", "eu1/prod-1", "us1/gone", "us1/prod-1"]),
    (f"{CHANGES}&namespace=prod&cluster=eu1", [], OF_EU1, OF_EU1),
    (f"{CHANGES}&namespace=prod&cluster=us1", [], [], ["us1/gone", "us1/prod-1"]),
    ("/fleet/v1/resources/configmaps?namespace=prod", 404, 404, ["eu1/prod-c", "us1/prod-c"]),
    ("/fleet/v1/resources/widgets?namespace=prod", 404, 404, 404),
    ("/fleet/v1/objects/eu1/pods/prod/prod-1", 404, 200, 200),
    ("/fleet/v1/objects/eu1/pods/prod/none", 404, 404, 404),
    ("/fleet/v1/objects/eu1/pods/test/test-1", 404, 404, 200),
    ("/fleet/v1/objects/eu1/pods/-/prod-1", 404, 404, 404),
    ("/fleet/v1/objects/us1/pods/prod/prod-1", 404, 404, 200),
    ("/fleet/v1/objects/eu1/configmaps/prod/prod-c", 404, 404, 200),
    (f"{V1}?gvr=pods&namespace=prod", 404, ["prod-1"], ["prod-1", "prod-1"]),
    (f"{V1}?gvr=pods&namespace=prod&cluster=us1", 404, 404, ["prod-1"]),
    (f"{V1}?gvr=pods", 404, 404, ["prod-1", "prod-1", "test-1", "test-1"]),
    (f"{V1}_with_cluster?gvr=pods&namespace=prod", 404, ["prod-1"], ["prod-1", "prod-1"]),
    (f"{V1}_with_cluster?gvr=pods", 404, 404, ["prod-1", "prod-1", "test-1", "test-1"]),
    (f"{V1}_cluster", [], [], ["eu1", "us1"]),
    (f"{V1}_cluster?name=eu1", [], [], ["eu1"]),
    (f"{EVENTS}&namespace=prod", 404, ["eu1/prod-1"], ["eu1/prod-1", "us1/prod-1"]),
    (f"{EVENTS}&namespace=prod&cluster=us1", 404, 404, ["us1/prod-1"]),
    (f"{EVENTS}&namespace=prod&cluster=none", 404, 404, []),
    (f"{EVENTS}&namespace=test", 404, 404, ["eu1/test-1", "us1/test-1"]),
    # On the hub itself: queues, and MultiClusterResources, of which this fleet's hub has none.
    ("/fleet/v1/queues", 403, 403, []),
    ("/fleet/v1/held-deletions", 403, 403, 404),
    # A user who may not get the Cluster finds the same kinds, whatever name they ask for.
    (EU1, 200, 200, 200),
    (f"{EU1}/version", 200, 200, 200),
    (f"{NONE}/version", 200, 200, 404),
    (f"{EU1}/apis", 200, 200, 200),
    (f"{EU1}/api/v1", 200, 200, 200),
    (f"{NONE}/api/v1", 200, 200, 404),
    (f"{ALL}/api/v1", 200, 200, 200),
    (f"{EU1}/apis/apps/v1", 404, 404, 404),
    (f"{EU1}/openapi/v3", 200, 200, 200),
    (f"{EU1}/openapi/v3/api/v1", 200, 200, 200),
    (f"{NONE}/openapi/v3/api/v1", 200, 200, 404),
    (f"{EU1}/openapi/v2", 200, 200, 200),
    (f"{EU1}/nowhere", 404, 404, 404),
    (f"{EU1}/api/v1/pods", 404, 404, ["prod-1", "test-1"]),
    (f"{EU1}{IN_PROD}/pods", 404, ["prod-1"], ["prod-1"]),
    (f"{EU1}{IN_PROD}/pods?labelSelector=a=b", 404, [], []),
    (f"{EU1}{IN_PROD}/pods?fieldSelector=metadata.name=none", 404, [], []),
    (f"{EU1}{IN_PROD}/pods/prod-1", 404, 200, 200),
    (f"{EU1}{IN_PROD}/pods/none", 404, 404, 404),
    (f"{EU1}{IN_PROD}/pods/prod-1/log", 405, 405, 405),
    (f"{EU1}/api/v1/namespaces/test/pods", 404, 404, ["test-1"]),
    (f"{EU1}/api/v1/namespaces/test/pods/test-1", 404, 404, 200),
    (f"{EU1}{IN_PROD}/configmaps", 404, 404, ["prod-c"]),
    (f"{EU1}{IN_PROD}/secrets", 404, 404, 404),
    (f"{US1}{IN_PROD}/pods", 404, 404, ["prod-1"]),
    (f"{US1}{IN_PROD}/pods/prod-1", 404, 404, 200),
    (f"{NONE}{IN_PROD}/pods", 404, 404, 404),
    (f"{NONE}{IN_PROD}/pods/prod-1", 404, 404, 404),
    (f"{ALL}/api/v1/pods", 404, 404, ["eu1/prod-1", "eu1/test-1", "us1/prod-1", "us1/test-1"]),
    (f"{ALL}{IN_PROD}/pods", 404, ["eu1/prod-1"], ["eu1/prod-1", "us1/prod-1"]),
    (f"{ALL}{IN_PROD}/pods/prod-1", 404, 200, ["eu1/prod-1", "us1/prod-1"]),
    (f"{ALL}/api/v1/namespaces/test/pods", 404, 404, ["eu1/test-1", "us1/test-1"]),
    (f"{EU1}/api/v1/pods{WATCH}", 404, 404, ["prod-1", "test-1"]),
    (f"{EU1}{IN_PROD}/pods{WATCH}", 404, ["prod-1"], ["prod-1"]),
    (f"{US1}{IN_PROD}/pods{WATCH}", 404, 404, ["prod-1"]),
    (f"{NONE}{IN_PROD}/pods{WATCH}", 404, 404, 404),
    (f"{ALL}{IN_PROD}/pods{WATCH}", 404, ["eu1/prod-1"], ["eu1/prod-1", "us1/prod-1"]),
]


async def record_past(server: SecuredApi, bus: Bus) -> None:
    """Publish that pods were added to prod of each cluster, and that others were deleted."""
    past = RecordedPast(bus, server.snapshot)
    await ensure_stream(bus, LIMITS)
    server.begin = rfc3339(await past.now())
    for source in (Source(cluster=name) for name in server.members):
        await past.publish(source.added("prod-1", 1000, body=pod("prod-1", 1000)))
        await past.publish(source.deleted("gone", 1001, body=pod("gone", 999)))


@pytest.fixture
async def api(
    redis: Redis, valkey_url: str, nats_url: str, tmp_path: Path
) -> AsyncGenerator[SecuredApi]:
    async with (
        secured_api(redis, valkey_url, tmp_path) as server,
        connected(nats_url, name="test") as bus,
    ):
        await record_past(server, bus)
        shared = {name: str(value) for name, value in server.shared.items() if name != "providers"}
        environment = {f"FLEETBUS_{name.upper()}": value for name, value in shared.items()} | {
            "FLEETBUS_REDIS_URL": valkey_url,
            "FLEETBUS_NATS_URL": nats_url,
            "FLEETBUS_PROVIDERS": json.dumps(server.shared["providers"]),
        }
        child, url = await start_query_api(tmp_path, environment)
        try:
            yield await server.use(url)
        finally:
            await child.stop()
        assert "token-of-" not in child.log.read_text(), "a token is in the log"


@pytest.fixture
async def secured(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    """An API in this process, for what needs no past."""
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield await server.start()


def shown(answer: httpx.Response) -> Any:
    """The names that an answer shows; its status if it shows no list."""
    if answer.headers["content-type"] == "application/x-ndjson":
        return sorted(
            f"{row[0]}/{row[2]}" for row in map(json.loads, answer.text.splitlines()[1:-1])
        )
    lines = answer.text.splitlines()
    if lines and lines[0].startswith('{"type":"ADDED"'):
        return sorted(_name_of(json.loads(line)["object"]) for line in lines)
    body: Any = answer.json()
    if "changedObjects" in body:
        return sorted(f"{c}/{group['name']}" for group in body["groups"] for c in group["clusters"])
    if "groupCount" in body:
        groups = {next(iter(group["values"].values())): group["count"] for group in body["groups"]}
        return groups or {"total": body["total"]}
    if answer.status_code != 200 or (isinstance(body, dict) and "items" not in body):
        return answer.status_code
    items = cast("list[Any]", body["items"] if isinstance(body, dict) else body)
    return sorted(map(_name_of, items))


def routes_of_the_api() -> list[Any]:
    app = create_app(
        reader=cast("Any", None),
        redis=cast("Any", None),
        settings=QueryApiSettings(),
        access=OpenAccess(),
        authenticator=None,
        tail=cast("Any", None),
        membership=cast("Any", None),
        history=HistorySources(HistoryConnection(None), cast("Any", None)),
    )
    return list(app.routes)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def ask(api: SecuredApi, token: str, path: str) -> tuple[httpx.Response, Any]:
    """The answer, and what it shows: of a stream, up to the end of the present state."""
    if not path.startswith(EVENTS):
        answer = await api.get(token, path.replace("BEGIN", api.begin))
        return answer, None
    names: list[str] = []
    async with api.client.stream("GET", path, headers=bearer(token) if token else {}) as answer:
        if answer.status_code != 200:
            await answer.aread()
            return answer, answer.status_code
        async for line in answer.aiter_lines():
            if line.startswith('data: {"cluster"'):
                names.append(_name_of(json.loads(line.removeprefix("data: "))))
            if line == 'data: {"initial":true}':
                break
    return answer, sorted(names)


async def may_list(api: SecuredApi, token: str, cluster: str) -> Any:
    """Whether a user may list pods in prod, as a review answers; its status if it has no answer."""
    attributes = {"verb": "list", "resource": "pods", "namespace": "prod"}
    answer = await api.client.post(
        f"/kube/{cluster}/{REVIEWS}",
        json={"spec": {"resourceAttributes": attributes}},
        headers=bearer(token),
    )
    return answer.json()["status"]["allowed"] if answer.status_code == 201 else answer.status_code


def _name_of(item: dict[str, Any]) -> str:
    if "plural" in item:
        return item["plural"]
    if "name" in item:
        return f"{item['cluster']}/{item['name']}" if "cluster" in item else item["name"]
    tree = item.get("object") or item.get("Object") or item
    metadata: dict[str, Any] = tree["metadata"]
    name = metadata["name"]
    annotations: dict[str, str] = metadata.get("annotations") or {}
    cluster = item.get("cluster") or annotations.get("fleetbus.dev/cluster")
    return f"{cluster}/{name}" if cluster else name


def test_a1_every_route_has_a_row():
    """Check each route and method, also those that OpenAPI does not describe."""
    routes = routes_of_the_api()
    asked = [("GET", path.partition("?")[0]) for path, *_ in MATRIX]
    asked += [(method, path) for path, method in WRITES.items()]
    asked.append(("POST", f"{EU1}/{REVIEWS}"))
    served = [
        next((r for r in routes if method in r.methods and r.path_regex.match(path)), None)
        for method, path in asked
    ]
    assert [(r.path, r.methods) for r in routes if r not in served] == []
    assert {r.path for r in routes if r.methods - {"GET", "HEAD"}} == {
        *WRITES,
        "/kube/{cluster}/{path:path}",
    }


@pytest.mark.slow
async def test_a1_every_endpoint_with_every_credential(api: SecuredApi):
    refused = {
        "no token": "",
        "an unknown token": "invented",
        "a token for the API server": api.user("wrong", audiences=("https://kubernetes.default",)),
        "an expired token": api.expired("late"),
    }
    nobody, narrow, reader = (api.user(name) for name in ("nobody", "narrow", "reader"))
    right = rule("get list watch", "fleetbus.dev", "clusters/pods", names=("eu1",))
    grant(api.hub, "narrow", right, namespace="prod")
    everything = ("clusters", "clusters/pods", "clusters/configmaps")
    of_hub = ("queues", "multiclusterresources")
    grant(api.hub, "reader", rule("get list watch", "fleetbus.dev", *everything, *of_hub))
    # A right on the hub in one namespace is none on what all namespaces hold.
    grant(api.hub, "narrow", rule("list", "fleetbus.dev", *of_hub), namespace="prod")
    # Rights on objects of the hub itself are none on those of its fleet.
    grant(api.hub, "nobody", rule("get list", "", "pods", "configmaps"))

    joiner = api.user(
        "joiner", audiences=("fleetbus", "https://kubernetes.default.svc.cluster.local")
    )
    for path, send in (("/v1/join", api.client.post), ("/v1/unjoin", api.client.delete)):
        for token in refused.values():
            assert (await send(f"{path}?cluster=c3", headers=bearer(token))).status_code == 401
        for token in (
            nobody,
            narrow,
            reader,
            joiner,
        ):  # the last is known to the hub, without rights
            assert (await send(f"{path}?cluster=c3", headers=bearer(token))).status_code == 403
    for cluster in ("eu1", "us1", "-"):
        mays = [await may_list(api, token, cluster) for token in (nobody, narrow, reader)]
        assert mays == [False, cluster != "us1", True]
        for token in refused.values():
            assert await may_list(api, token, cluster) == 401
    for path, without, some, everywhere in MATRIX:
        for what, token in refused.items():
            answer, _ = await ask(api, token, path)
            assert answer.status_code == 401, (what, path)
            assert answer.headers["www-authenticate"].startswith("Bearer "), (what, path)
            assert token not in answer.text or not token
        for token, expected in ((nobody, without), (narrow, some), (reader, everywhere)):
            answer, actual = await ask(api, token, path)
            if actual is None:
                actual = shown(answer)
            assert actual == expected, (token, path)


async def test_a2_under_kube_what_is_forbidden_looks_like_what_is_absent(secured: SecuredApi):
    """Rule A2: cluster, type, namespace and object; kubectl's narrow user still finds its types."""
    narrow = secured.user("narrow")
    right = rule("get list", "fleetbus.dev", "clusters/pods", names=("eu1",))
    grant(secured.hub, "narrow", right, namespace="prod")

    async def ask(path: str) -> tuple[int, Any]:
        answer = await secured.get(narrow, path)
        return answer.status_code, answer.json()

    async def same(forbidden: str, absent: str) -> None:
        (code, problem), (other, missing) = await ask(forbidden), await ask(absent)
        assert code == other, (forbidden, problem, missing)
        assert problem == missing, (forbidden, problem, missing)

    for path in ("/version", "/api", "/apis", "/api/v1", f"{IN_PROD}/pods", f"{IN_PROD}/pods/a"):
        await same(f"{US1}{path}", f"{NONE}{path}")
    await same(f"{EU1}{IN_PROD}/configmaps/prod-c", f"{NONE}{IN_PROD}/configmaps/prod-c")
    code, found = await ask(f"{EU1}{IN_PROD}/configmaps")
    _, missing = await ask(f"{EU1}{IN_PROD}/secrets")
    assert json.dumps(missing).replace("secrets", "configmaps") == json.dumps(found)
    assert (code, found["kind"]) == (404, "Status")
    listed = (await ask(f"{EU1}/api/v1"))[1]["resources"]
    assert [each["name"] for each in listed] == ["configmaps", "pods"]


async def test_a3_other_authorization_headers_are_401(secured: SecuredApi):
    token = secured.user("ann")
    for value in ("Basic YTpi", "Bearer", token, f"Bearer {token} {token}", "Bearer é"):
        answer = await secured.client.get(LIST, headers={b"Authorization": value.encode("latin-1")})
        assert answer.status_code == 401, value
    twice = [("Authorization", f"Bearer {token}")] * 2
    assert (await secured.client.get(LIST, headers=twice)).status_code == 401
    answer = await secured.client.get(
        CLUSTERS,
        headers={"Authorization": f"Bearer {secured.user('bob')}", "Impersonate-User": "ann"},
    )
    assert shown(answer) == [], "the header means nothing here"
