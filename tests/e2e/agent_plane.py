"""A control plane of the scenarios that the hub calls through an agent.

The agent and the watcher in it have the ServiceAccount of charts/fleetbus-agent, each with a token
of its own, so that the audit log tells what came by the agent. How an agent joins and gets its nkey
is a part of `e2e.install`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from e2e.planes import ADMIN_TOKEN, Plane
from fleetbus.agents.nkeys import make_seed
from reference.agent_manifest import NAME, render_agent
from support.api.conformance_client import Api
from support.api.conformance_server import from_kubeconfig

PROGRAMS: Final = ("gateway", "watcher")
_PATHS: Final = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
_ACCOUNT: Final = f"system:serviceaccount:{NAME}:{NAME}"
_CREDENTIAL: Final = "authentication.kubernetes.io/credential-id"
_HOURS: Final = 6
_OWN: Final = ("fleetbus-watcher", "fleetbus-agent")
"""User agents of the programs in the cluster; all others of ours are the hub's."""

Json = dict[str, Any]


def install_account(plane: Plane) -> None:
    """Create what the chart gives the agent, with all rights; keep a token for each program."""
    api = Api(from_kubeconfig(plane.write_kubeconfig("admin", token=ADMIN_TOKEN)))
    _made(api.post("/api/v1/namespaces", {"metadata": {"name": NAME}}))
    values: Json = {
        "cluster": plane.name,
        "nats": {"url": "nats://127.0.0.1:4222"},
        "registration": {"seed": make_seed()},
        "access": {"mode": "full"},
    }
    for obj in render_agent(values):
        if path := _PATHS.get(obj["kind"]):
            _made(api.post(path.format(namespace=NAME), obj))
    path = f"/api/v1/namespaces/{NAME}/serviceaccounts/{NAME}/token"
    request: Json = {"spec": {"audiences": [], "expirationSeconds": _HOURS * 3600}}
    tokens = {name: _made(api.post(path, request))["status"]["token"] for name in PROGRAMS}
    plane.agent_tokens = tokens
    api.http.close()


def _made(reply: Any) -> Json:
    assert reply.status < 300, reply.text
    return reply.body


def audit_failures(audit_log: Path, *, names_tokens: bool = True) -> tuple[Json, list[str]]:
    """Compare what came from fleetbus with the account that it has to have.

    Args:
        audit_log: of the API server.
        names_tokens: whether it says with which token a request came, as since Kubernetes 1.30.

    Returns:
        How many requests of the hub came by the agent and how many acted as another account, and
        what is wrong.
    """
    failures: list[str] = []
    agents: set[str] = set()
    watchers: set[str] = set()
    figures = {"by_agent": 0, "impersonated": 0}
    for event in _events(audit_log):
        user_agent: str = event.get("userAgent", "")
        if not user_agent.startswith("fleetbus"):
            continue
        who = event["user"]["username"]
        if who != _ACCOUNT:
            failures.append(f"{user_agent} came as {who}: {event['verb']} {event['requestURI']}")
            continue
        if names_tokens:
            (credential,) = event["user"]["extra"][_CREDENTIAL]
            (watchers if user_agent.startswith("fleetbus-watcher") else agents).add(credential)
        if not user_agent.startswith(_OWN):
            figures["by_agent"] += 1
            figures["impersonated"] += "impersonatedUser" in event
    if len(agents) > 1 or agents & watchers:
        failures.append("the hub's requests came with another token than the agent's")
    return figures, failures


def _events(audit_log: Path) -> Iterator[Mapping[str, Any]]:
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        if event["stage"] == "ResponseComplete":
            yield event
