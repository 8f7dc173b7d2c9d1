"""The components of a rendered release as processes, each with its own rights everywhere.

NATS and Valkey run with the rendered configuration. The emulated API servers enforce the rendered
RBAC on the hub and that of `member_rights` on the members, and record every call.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from fleetbus.clusters.member_rights import NAMESPACE as MEMBER_NAMESPACE
from fleetbus.clusters.member_rights import WATCHER, WRITER, watcher_rules, writer_rules
from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_emulator.apiserver.auth.access import Access
from fleetbus_emulator.apiserver.http.server import ApiServers
from fleetbus_proto.resources import parse_resource
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.api.rbac import Call, Grant, allows, grants_of, grants_to
from support.api.rendered_chart import NAMESPACE, Object, find, render
from support.processes.services import Processes
from support.servers.rendered_servers import (
    RenderedNats,
    RenderedValkey,
    rendered_nats,
    rendered_valkey,
)

KUBECONFIGS: Final = "fleetbus-clusters"
CLUSTERS: Final = "fleetbus.dev/v1alpha1/clusters"
HUB: Final = "hub"
_PLACES: Final = re.compile("_(HOST|PORT|FILE|URL|MODULES|USERNAME|LOG_FORMAT)$")
_WITHIN: Final = timedelta(seconds=60)  # several processes start at once


@dataclass
class Audited:
    """The rights in one cluster, and every call that was decided by them."""

    grants: list[Grant]
    calls: set[Call] = field(default_factory=set[Call])

    def __call__(self, access: Access) -> bool:
        user = access.user
        call = Call(
            *(user.name, access.verb, access.group, access.resource, access.subresource),
            *(access.namespace or "", access.name, access.path, user.groups),
        )
        if not self._is_granted_to(user.name):
            return False  # a person whom a review asked about
        self.calls.add(call)
        return allows(self.grants, call)

    def _is_granted_to(self, user: str) -> bool:
        return any(grant.subject == user for grant in self.grants)


def account(name: str, namespace: str = NAMESPACE) -> str:
    """The user name of a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"


def token_of(user: str) -> str:
    """The token of a user, the same in every cluster."""
    return "token-" + user.replace(":", ".")


@dataclass
class Release:
    """The running release.

    Attributes:
        clusters: the emulated ones by name, `hub` among them.
        audits: the rights and calls, by cluster.
        children: the processes that were started.
    """

    folder: Path
    clusters: dict[str, Cluster]
    audits: dict[str, Audited]
    servers: ApiServers
    nats: RenderedNats
    valkey: RenderedValkey
    start: Processes
    exits: AsyncExitStack
    children: list[Child] = field(default_factory=list[Child])

    def kubeconfig(self, cluster: str, user: str) -> str:
        """A kubeconfig of one cluster with the token of a user, as JSON."""
        whole = self.servers.kubeconfig({cluster: token_of(user)})
        context = next(entry for entry in whole["contexts"] if entry["name"] == cluster)
        chosen = context["context"]
        document = {
            **whole,
            "current-context": cluster,
            "contexts": [context],
            "clusters": [
                entry for entry in whole["clusters"] if entry["name"] == chosen["cluster"]
            ],
            "users": [entry for entry in whole["users"] if entry["name"] == chosen["user"]],
        }
        return json.dumps(document)

    def rights(self, component: str) -> dict[str, str]:
        """The environment with the credentials of a component."""
        path = self.folder / f"{component}.kubeconfig"
        path.write_text(self.kubeconfig(HUB, account(f"fb-fleetbus-{component}")))
        variables = self._rendered(component) | {
            "FLEETBUS_HUB_KUBECONFIG": str(path),
            "FLEETBUS_ALLOW_LOOPBACK": "true",
            "FLEETBUS_WATCHER_DISCOVERY_INTERVAL": "1s",
        }
        variables |= self.nats.environment(component)
        if component != "pool" and not component.startswith("watcher-"):
            variables |= self.valkey.environment(component)
        return variables

    def _rendered(self, component: str) -> dict[str, str]:
        """The rendered settings, but for addresses, files and what only a pod has."""
        deployment = find(self.nats.objects, "Deployment", f"fb-fleetbus-{component}")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return {
            variable["name"]: variable["value"]
            for variable in container["env"]
            if "value" in variable and not _PLACES.search(variable["name"])
        }

    def watcher(self, cluster: str) -> Child:
        """The watcher of one cluster, with its own kubeconfig."""
        environment = self.rights(f"watcher-{cluster}")
        if cluster == HUB:
            path = Path(environment["FLEETBUS_HUB_KUBECONFIG"])
        else:
            path = self.folder / f"{cluster}-watcher.kubeconfig"
            path.write_text(self.kubeconfig(cluster, account(WATCHER, MEMBER_NAMESPACE)))
        return self._own(self.start.watcher(cluster, kubeconfig=path, **environment))

    def reconciler(self, name: str, *modules: str) -> Child:
        """The projector, or a reconciler of the values."""
        is_projector = name == "projector"
        component = name if is_projector else f"reconciler-{name}"
        environment = self.rights(component)
        return self._own(
            self.start.reconciler(component, *modules, projector=is_projector, **environment)
        )

    def pool(self) -> Child:
        """A watcher of the pool."""
        return self._own(self.start.pool_watcher("pool", **self.rights("pool")))

    def distributor(self) -> Child:
        """The distributor."""
        return self._own(self.start.distributor("distributor", **self.rights("distributor")))

    def query_api(self) -> Child:
        """The query API, with authentication and on loopback."""
        port_file = {"FLEETBUS_QUERY_API_PORT_FILE": str(self.folder / "query-api-http.port")}
        environment = self.rights("query-api") | port_file
        return self._own(self.start.query_api("query-api", **environment))

    async def ready(self) -> None:
        """Wait until all processes are ready."""
        for child in self.children:
            await self.start.ready(child, within=_WITHIN)

    def _own(self, child: Child) -> Child:
        self.exits.push_async_callback(child.stop)
        self.children.append(child)
        return child

    def join(self, cluster: str, **labels: str) -> None:
        """Make the Secret and the Cluster of a member."""
        name = f"{cluster}-kubeconfig"
        text = self.kubeconfig(cluster, account(WRITER, MEMBER_NAMESPACE))
        secret = {
            "metadata": {"name": name, "labels": {"fleetbus.dev/kubeconfig": "true"}},
            "data": {"kubeconfig": base64.b64encode(text.encode()).decode()},
        }
        self.clusters[HUB].create("v1/secrets", secret, KUBECONFIGS)
        reference = {"namespace": KUBECONFIGS, "name": name}
        spec = {"kubeconfigSecretRef": reference, "allowHTTP": True}
        metadata = {"name": cluster, "labels": labels}
        self.clusters[HUB].create(CLUSTERS, {"metadata": metadata, "spec": spec})

    def logs(self) -> dict[str, str]:
        """The logs of all processes, in lower case."""
        return {
            child.name: (self.folder / f"{child.name}.log").read_text().lower()
            for child in self.children
        }


@asynccontextmanager
async def released(
    values: Object,
    folder: Path,
    *,
    members: Mapping[str, bool],
    watched: Sequence[str],
    written: Sequence[str],
) -> AsyncGenerator[Release]:
    """A hub, members and stores; nothing of the release runs yet.

    Args:
        values: of the chart.
        folder: for logs, data and credentials.
        members: the names of the clusters beside the hub, and whether it has a watcher of its own;
            otherwise the pool watches it with the kubeconfig of the writer.
        watched: the resources that watchers of members may read.
        written: the resources that the distributor and controllers may write on members.
    """
    rights = {HUB: grants_of(render(values))}
    for name, is_dedicated in members.items():
        watcher = account(WATCHER if is_dedicated else WRITER, MEMBER_NAMESPACE)
        rights[name] = [
            *grants_to(watcher, watcher_rules(_parsed(watched))),
            *grants_to(account(WRITER, MEMBER_NAMESPACE), writer_rules(_parsed(written))),
        ]
    audits = {name: Audited(grants) for name, grants in rights.items()}
    clusters = {name: _cluster(name, audit) for name, audit in audits.items()}
    for crd in crds():
        clusters[HUB].create(CRDS, crd)
    clusters[HUB].create("v1/namespaces", {"metadata": {"name": KUBECONFIGS}})
    async with AsyncExitStack() as exits:
        servers = await exits.enter_async_context(serve(list(clusters.values()), tls=True))
        nats = await exits.enter_async_context(rendered_nats(values, folder))
        valkey = await exits.enter_async_context(rendered_valkey(values, folder))
        start = Processes(folder, folder / "unused", "", "", watched)
        yield Release(folder, clusters, audits, servers, nats, valkey, start, exits)


def _parsed(resources: Iterable[str]) -> list[Any]:
    return [parse_resource(resource) for resource in resources]


def _cluster(name: str, audit: Audited) -> Cluster:
    users = {grant.subject for grant in audit.grants}
    tokens = {token_of(user): User(user) for user in users}
    return Cluster(name, tokens=tokens, authorize=audit)
