"""Real clusters in the place of emulated ones, for the same tests.

FLEETBUS_TEST_KUBECONFIG names a kubeconfig of API servers on loopback (`make e2e` starts them).
**What a test leaves in them is removed**, so each cluster in it has to say that it is disposable:
by the extension `fleetbus.dev/test-cluster`, an object with `disposable: true`, and `auditLog`, the
file in which its API server notes who asked what (without it tests that count requests are
skipped). One with `agent`, an object with the tokens `gateway` and `watcher`, stands for a cluster
that the hub cannot reach: it is given to tests that want such a one, and nobody else. What only an
emulated server can do skips the test that wants it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from fleetbus_emulator.apiserver import ApiError, LoggedRequest, NotServed, Partition
from support.api.conformance_client import Api, Reply, until
from support.api.conformance_server import from_kubeconfig
from support.api.served_types import list_metadata, types_with
from support.hostile.chaos_proxy import Link, chaos_link

REAL = os.environ.get("FLEETBUS_TEST_KUBECONFIG", "")
EXTENSION = "fleetbus.dev/test-cluster"
MANAGER = "fleetbus-devfleet"
CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"

_LOOPBACK = "127.0.0.1"
_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "deletecollection": "DELETE"}
_OWN = frozenset({"namespaces", "customresourcedefinitions"})
"""They are removed last: others are in them, or are theirs."""
_PASSING = frozenset({"core/events", "events.k8s.io/events", "coordination.k8s.io/leases"})
"""The server itself goes on writing them."""

Json = dict[str, Any]


class RealCluster:
    """One real cluster, with the calls of `Cluster` that tests make."""

    def __init__(self, name: str, api: Api, audit_log: Path | None) -> None:
        self.name = name
        self._api = api
        self._types: dict[str, dict[str, Json]] = {}
        self._audit = AuditLog(audit_log)
        self._first = {uid for _, uid, *_ in self._objects()}

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"only an emulated cluster has {name!r}")

    # --- objects --------------------------------------------------------------------------------

    def create(
        self, gvr: str, obj: Json, namespace: str | None = None, *, manager: str = MANAGER
    ) -> Json:
        body = self._typed(gvr, obj)
        place = namespace or body.get("metadata", {}).get("namespace")
        created = self._done(self._api.post(self._path(gvr, place), body, fieldManager=manager))
        if gvr == CRDS:  # an emulated one is served at once
            until(lambda: self._is_served(created))
        return created

    def get(self, gvr: str, namespace: str | None, name: str) -> Json | None:
        reply = self._api.get(self._path(gvr, namespace, name))
        return None if reply.status == 404 else self._done(reply)

    def list(self, gvr: str, namespace: str | None = None, labels: str = "") -> list[Json]:
        selected = {"labelSelector": labels} if labels else {}
        path = self._path(gvr, namespace, everywhere=namespace is None)
        answer = self._done(self._api.get(path, **selected))
        api_version, kind = answer["apiVersion"], answer["kind"].removesuffix("List")
        return [{"apiVersion": api_version, "kind": kind, **item} for item in answer["items"]]

    def names(self, gvr: str) -> list[tuple[str, str]]:
        metas = [item["metadata"] for item in self.list(gvr)]
        return [(meta.get("namespace", ""), meta["name"]) for meta in metas]

    def update(self, gvr: str, obj: Json, *, subresource: str = "", manager: str = MANAGER) -> Json:
        path = self._place_of(gvr, obj, subresource)
        return self._done(self._api.put(path, self._typed(gvr, obj), fieldManager=manager))

    def update_status(self, gvr: str, obj: Json, *, manager: str = MANAGER) -> Json:
        return self.update(gvr, obj, subresource="status", manager=manager)

    def apply(
        self, gvr: str, obj: Json, *, manager: str, force: bool = False, subresource: str = ""
    ) -> Json:
        path = self._place_of(gvr, obj, subresource)
        forced = {"force": "true"} if force else {}
        body = self._typed(gvr, obj)
        return self._done(self._api.apply(path, body, manager, **forced))

    def patch(
        self,
        gvr: str,
        namespace: str | None,
        name: str,
        patch: Json,
        *,
        subresource: str = "",
        manager: str = MANAGER,
    ) -> Json:
        path = self._path(gvr, namespace, name, subresource)
        return self._done(self._api.merge(path, patch, fieldManager=manager))

    def delete(
        self,
        gvr: str,
        namespace: str | None,
        name: str,
        *,
        policy: str | None = None,
        grace: int | None = None,
    ) -> None:
        options: Json = {"propagationPolicy": policy, "gracePeriodSeconds": grace}
        body = {key: value for key, value in options.items() if value is not None}
        self._done(self._api.delete(self._path(gvr, namespace, name), body))

    def serves(self, gvr: str) -> bool:
        try:
            self._path(gvr, None)
        except NotServed:
            return False
        return True

    # --- what clients asked ---------------------------------------------------------------------

    @property
    def requests(self) -> Sequence[LoggedRequest]:
        """The requests of everybody but the cluster itself since the test began."""
        return self._audit.read()

    @property
    def open_watches(self) -> int:
        """Return how many watches are open."""
        self._audit.read()
        return len(self._audit.open)

    # --- afterwards -----------------------------------------------------------------------------

    def clean(self) -> None:
        """Remove what was not there before the tests began."""
        late = [obj for obj in self._objects() if obj[1] not in self._first]
        for path, _, plural, meta in sorted(late, key=lambda obj: obj[2] in _OWN):
            if meta.get("finalizers"):
                self._api.merge(path, {"metadata": {"finalizers": []}})
            self._api.delete(path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
            if plural == "namespaces":  # there may be nobody else to do it
                none: Json = {"metadata": {"name": meta["name"]}, "spec": {"finalizers": []}}
                self._api.put(f"{path}/finalize", none)
        until(lambda: not [obj for obj in self._objects() if obj[1] not in self._first])
        self._types.clear()

    def close(self) -> None:
        self._api.http.close()

    def _objects(self) -> list[tuple[str, str, str, Json]]:
        """Path, uid, plural and metadata of every object of the cluster."""
        objects: list[tuple[str, str, str, Json]] = []
        for key, path in types_with(self._api, "list", "delete").items():
            root, _, plural = path.rpartition("/")
            for meta in list_metadata(self._api, path) if key not in _PASSING else ():
                inside = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
                objects.append(
                    (f"{root}{inside}/{plural}/{meta['name']}", meta["uid"], plural, meta)
                )
        return objects

    # --- details --------------------------------------------------------------------------------

    def _resource(self, gvr: str) -> Json:
        api_version, _, plural = gvr.rpartition("/")
        if plural not in self._types.get(api_version, {}):
            reply = self._api.get(_root(api_version))
            resources: list[Json] = reply.body["resources"] if reply.status == 200 else []
            self._types[api_version] = {resource["name"]: resource for resource in resources}
        if plural not in self._types[api_version]:
            raise NotServed(f"cluster {self.name} serves no {gvr!r}")
        return self._types[api_version][plural]

    def _path(
        self,
        gvr: str,
        namespace: str | None,
        *suffixes: str,
        everywhere: bool = False,
    ) -> str:
        api_version, _, plural = gvr.rpartition("/")
        inside = self._resource(gvr)["namespaced"] and not everywhere
        place = f"/namespaces/{namespace or 'default'}" if inside else ""
        return "/".join(
            segment for segment in (_root(api_version) + place, plural, *suffixes) if segment
        )

    def _place_of(self, gvr: str, obj: Json, subresource: str) -> str:
        meta = obj["metadata"]
        return self._path(gvr, meta.get("namespace"), meta["name"], subresource)

    def _typed(self, gvr: str, obj: Json) -> Json:
        typed = {"apiVersion": gvr.rpartition("/")[0], "kind": self._resource(gvr)["kind"]}
        return typed | json.loads(json.dumps(obj))

    def _is_served(self, definition: Json) -> bool:
        spec = definition["spec"]
        plural, api_version = (
            spec["names"]["plural"],
            f"{spec['group']}/{spec['versions'][0]['name']}",
        )
        if self._api.get(f"{_root(api_version)}/{plural}").status != 200:
            return False
        self._types.pop(api_version, None)
        try:  # its discovery follows later
            return bool(self._resource(f"{api_version}/{plural}"))
        except NotServed:
            return False

    def _done(self, reply: Reply) -> Json:
        if reply.status >= 400:
            status: Json = reply.body or {}
            raise ApiError(reply.status, status.get("reason"), status.get("message", reply.text))
        return reply.body


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


class AuditLog:
    """The requests that an API server writes to its audit log from now on.

    Attributes:
        open: the ids of the watches that are open.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._at = path.stat().st_size if path is not None else 0
        self._requests: list[LoggedRequest] = []
        self.open: set[str] = set()

    def read(self) -> list[LoggedRequest]:
        """The requests up to now."""
        if self._path is None:
            pytest.skip(f"the cluster names no audit log ({EXTENSION})")
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                self._at += len(line)
                self._take(json.loads(line))
        return self._requests

    def take(self) -> list[LoggedRequest]:
        """The requests since this was asked before."""
        requests, self._requests = self.read(), []
        return requests

    def _take(self, event: Json) -> None:
        is_watch = event["verb"] == "watch"
        if is_watch and event["stage"] == "ResponseStarted":
            self.open.add(event["auditID"])
        elif is_watch:
            if event["auditID"] in self.open:
                self.open.discard(event["auditID"])
                return  # it was noted when it opened
        elif event["stage"] != "ResponseComplete":
            return
        self._requests.append(self._logged(event))

    def _logged(self, event: Json) -> LoggedRequest:
        url = urlsplit(str(event["requestURI"]))
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        verb: str = event["verb"]
        return LoggedRequest(
            number=len(self._requests) + 1,
            time=datetime.fromisoformat(event["requestReceivedTimestamp"]),
            verb=verb,
            method=_METHODS.get(verb, "DELETE" if verb == "delete" else "GET"),
            path=url.path,
            query=query,
            user_agent=event.get("userAgent", ""),
            field_manager=query.get("fieldManager", ""),
            status=event.get("responseStatus", {}).get("code", 0),
        )


class RealServers:
    """The API servers of real clusters, each behind a link that can be cut."""

    def __init__(
        self,
        document: Mapping[str, Json],
        links: Mapping[str, Link],
        agents: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._document = document
        self._links = links
        self._agents = agents

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"only emulated API servers have {name!r}")

    def url(self, cluster: str) -> str:
        return f"https://{_LOOPBACK}:{self._links[cluster].port}"

    @property
    def behind_agents(self) -> list[str]:
        """The clusters that the hub calls through agents."""
        return list(self._agents)

    def member_kubeconfig(self, cluster: str, program: str) -> Json:
        """For a program inside of a cluster that has an agent: `gateway` or `watcher`."""
        entries = {cluster: self._document[cluster]}
        return self._kubeconfig(entries, self._agents[cluster][program])

    def kubeconfig(self, token: str | None = None) -> Json:
        """With a context per cluster, named after it; without a token, for an administrator.

        Clusters that only an agent reaches are not in it.
        """
        direct = {n: entry for n, entry in self._document.items() if n not in self._agents}
        return self._kubeconfig(direct, token)

    def _kubeconfig(self, document: Mapping[str, Json], token: str | None) -> Json:
        clusters = {n: {**entry["cluster"], "server": self.url(n)} for n, entry in document.items()}
        users = {n: {"token": token} if token else entry["user"] for n, entry in document.items()}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": next(iter(document)),
            "clusters": [{"name": n, "cluster": cluster} for n, cluster in clusters.items()],
            "users": [{"name": n, "user": user} for n, user in users.items()],
            "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in document],
        }

    def write_kubeconfig(self, path: Path | str, token: str | None = None) -> None:
        path = Path(path)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(self.kubeconfig(token), sort_keys=False))

    async def stop(self, cluster: str) -> None:
        """Let nobody reach a cluster any more."""
        self._links[cluster].refuse()

    async def start(self, cluster: str) -> None:
        self._links[cluster].heal()

    async def partition(self, cluster: str, partition: Partition = Partition.HANG) -> None:
        link = self._links[cluster]
        if partition is Partition.REFUSE:
            link.refuse()
            return
        up = partition in (Partition.HANG, Partition.LOSE_REQUESTS)
        link.hold(up=up, down=partition in (Partition.HANG, Partition.LOSE_ANSWERS))

    async def heal(self, cluster: str) -> None:
        self._links[cluster].heal()


@asynccontextmanager
async def real_clusters(
    *names: str, behind_agents: Collection[str] = ()
) -> AsyncGenerator[tuple[dict[str, RealCluster], RealServers]]:
    """The first clusters of the kubeconfig under these names; afterwards they are as before.

    Args:
        names: for the test.
        behind_agents: those that only an agent reaches, as far as the kubeconfig has such clusters.
    """
    path = Path(REAL)
    document: Json = yaml.load(path.read_text(), yaml.CSafeLoader)
    contexts: list[Json] = document["contexts"]
    closed = [context for context in contexts if _agent_of(document, context)]
    entries = {n: _entry(document, c) for n, c in zip(behind_agents, closed, strict=False)}
    agents = {n: _agent_of(document, entry["context"]) for n, entry in entries.items()}
    direct = [context for context in contexts if context not in closed]
    others = [name for name in names if name not in entries]
    if len(direct) < len(others):
        pytest.skip(f"needs {len(others)} clusters, and {REAL} has {len(direct)}")
    entries |= {n: _entry(document, c) for n, c in zip(others, direct, strict=False)}
    clusters: dict[str, RealCluster] = {}
    async with AsyncExitStack() as exits:
        links: dict[str, Link] = {}
        for name, entry in entries.items():
            port = urlsplit(str(entry["cluster"]["server"])).port or 443
            links[name] = await exits.enter_async_context(chaos_link(port, speaks_nats=False))
            extension = entry["cluster"].pop("extensions")[0]["extension"]
            api = Api(from_kubeconfig(path, entry["context"]["name"]))
            log = Path(extension["auditLog"]) if "auditLog" in extension else None
            clusters[name] = RealCluster(name, api, log)
            exits.callback(clusters[name].close)
            exits.callback(clusters[name].clean)
        in_order = {name: clusters[name] for name in names}
        yield in_order, RealServers({n: entries[n] for n in names}, links, agents)


def _entry(document: Json, context: Json) -> Json:
    """Cluster and user of a context, which has to be disposable."""
    if not _extension(document, context).get("disposable"):
        pytest.fail(f"{context['name']} of {REAL} is not marked as disposable ({EXTENSION})")
    cluster = _named(document, "clusters", context)["cluster"]
    user = _named(document, "users", context)["user"]
    # Copies: contexts may share a user, for which YAML would have an alias.
    return {"context": context, **copy.deepcopy({"cluster": cluster, "user": user})}


def _agent_of(document: Json, context: Json) -> Json:
    """The tokens of the agent that alone reaches the cluster; empty if everybody does."""
    return _extension(document, context).get("agent", {})


def _extension(document: Json, context: Json) -> Json:
    cluster = _named(document, "clusters", context)["cluster"]
    extensions = {e["name"]: e["extension"] for e in cluster.get("extensions", [])}
    return extensions.get(EXTENSION, {})


def _named(document: Json, section: str, context: Json) -> Json:
    """The cluster or the user of a context."""
    name = context["context"][section.removesuffix("s")]
    return next(entry for entry in document[section] if entry["name"] == name)
