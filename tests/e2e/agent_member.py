"""The member of docs/install.md that only its agent reaches: its network, and what has to be true.

Its API server listens on loopback like the others. The pods of the hub have no route to it, its own
pods have none to the other API servers, and no object of the hub has its address. The check's own
commands are those of the administrators of both clusters, who reach all of them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import SplitResult, urlsplit

import yaml

from e2e.install_page import Step
from fleetbus.agents.records import read_record
from support.eventually import eventually

if TYPE_CHECKING:
    from e2e.install import Installation

CLUSTER: Final = "ap1"
FIRST_POD: Final = "10.244.128.2"
"""Address of the first pod there; those of the pods of the hub are lower."""
_HUB_PODS: Final = ip_network("10.244.0.0/17")
_NATS: Final = "nats.example.com"
"""The name that the page gives the NATS of the hub."""
_DIRECT: Final = "us1"
"""A member that the hub reaches, for comparison."""
_AGENT: Final = "system:serviceaccount:fleetbus-agent:fleetbus-agent"
_DEPLOYER: Final = "deployer"
_SHOP: Final = "shop"
"""The namespace of that account, in which the agent itself may not write."""
_SOON: Final = timedelta(minutes=4)
"""Longer than the distributor waits before it tries again what a server refused."""
_CONNECT: Final = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(place, "is connected to")
    except OSError as e:
        print(place, "is out of reach:", e.strerror or e)
"""
_RIGHTS: Final = """
helm template fleetbus-agent charts/fleetbus-agent -n fleetbus-agent -s templates/rbac.yaml \\
  --set cluster=ap1,nats.url=tls://nats.example.com:4222,access.mode=namespaces \\
  --set 'access.namespaces={default},access.impersonate={shop/deployer}' |
  kubectl --kubeconfig ap1.kubeconfig apply -f -
"""

Json = dict[str, Any]


async def name_nats(installed: Installation) -> None:
    """Let the member's pods resolve the name of the hub's NATS, as a load balancer's name."""
    path = ("get", "service", "fleetbus-nats", "-o", "jsonpath={.spec.clusterIP}")
    address = await installed.ask("hub", "-n", "fleetbus", *path)
    installed.names.write_text(f"{address} {_NATS}\n")


# --- after the join -------------------------------------------------------------------------------


async def is_behind_its_agent(installed: Installation) -> None:
    """The hub neither reaches it nor knows its address; the agent has an nkey of its own."""
    await _is_out_of_reach(installed)
    address = str(_place(installed, CLUSTER).hostname)
    texts = [text async for text in _texts_of_hub(installed)]
    assert any(str(_place(installed, _DIRECT).hostname) in text for text in texts)
    assert not [text for text in texts if address in text], f"the hub knows {address}"
    query = ("get", "clusters.fleetbus.dev", CLUSTER, "-o", "jsonpath={.spec}")
    spec = json.loads(await installed.ask("hub", *query))
    assert (spec["access"], "kubeconfigSecretRef" in spec) == ("Agent", False), spec
    await _has_exchanged_its_nkey(installed)
    line = f"{CLUSTER} / default / greeted: "
    await installed.create_pod(CLUSTER, "greeted")
    await eventually(lambda: line in installed.log("fleetbus-reconciler-hello"), _SOON)


async def _is_out_of_reach(installed: Installation) -> None:
    places = [_place(installed, name).netloc for name in (_DIRECT, CLUSTER)]
    command = "kubectl -n fleetbus exec deployment/fleetbus-projector -- python -c"
    text = f"{command} '{_CONNECT}' {' '.join(places)}"
    await installed.take(Step("connect from the hub", text, is_file=False))
    assert f"{places[0]} is connected to" in installed.output
    assert f"{places[1]} is out of reach" in installed.output


async def _texts_of_hub(installed: Installation) -> AsyncGenerator[str]:
    """The objects of the hub that may have addresses, Secrets and ConfigMaps as plain text."""
    for kind in ("secrets", "configmaps", "clusters.fleetbus.dev"):
        listed = json.loads(await installed.ask("hub", "get", kind, "-A", "-o", "json"))
        for obj in listed["items"]:
            data: Mapping[str, str] = obj.get("data") or {}
            values = data.values()
            yield json.dumps(obj)
            if kind == "secrets":
                for value in values:
                    yield base64.b64decode(value).decode(errors="replace")


async def _has_exchanged_its_nkey(installed: Installation) -> None:
    """The one-time nkey of the manifest has registered another, whose seed only the member has."""
    query = ("-n", "fleetbus-clusters", "get", "secret", f"{CLUSTER}-agent", "-o", "json")
    record = read_record(json.loads(await installed.ask("hub", *query)))
    assert record.key, record
    assert not record.one_time, "the one-time nkey still counts"
    query = ("-n", "fleetbus-agent", "get", "secret", "fleetbus-agent-nkey", "-o", "json")
    assert json.loads(await installed.ask(CLUSTER, *query)).get("data"), "the seed is not kept"


# --- after the distribution -----------------------------------------------------------------------


async def is_written_to_by_its_agent(installed: Installation) -> None:
    """Drift is corrected; the rights there count, and those of a ServiceAccount that is named."""
    await _drift_is_corrected(installed)
    await _rights_count(installed)
    log = installed.folder / CLUSTER / "audit.log"
    if log.exists():  # not of an emulated one
        direct = installed.folder / _DIRECT / "audit.log"
        check_audit(list(events_of(log)), list(events_of(direct)))


async def _drift_is_corrected(installed: Installation) -> None:
    data = ("get", "configmap", "web", "-o", "jsonpath={.data.greeting}", "--ignore-not-found")
    wanted = f"hello from {CLUSTER}"
    drift = ("patch", "configmap", "web", "--type=merge", "-p", '{"data":{"greeting":"by hand"}}')
    for command in (drift, ("delete", "configmap", "web")):
        await installed.ask(CLUSTER, *command)

        async def is_as_wanted() -> bool:
            return await installed.ask(CLUSTER, *data) == wanted

        await eventually(is_as_wanted, _SOON)


async def _rights_count(installed: Installation) -> None:
    """Writes that the owner did not allow are refused: elsewhere, and as another account."""
    for cluster in ("hub", CLUSTER):
        await installed.ask(cluster, "create", "namespace", _SHOP)
    for words in (
        ("serviceaccount", _DEPLOYER),
        ("role", _DEPLOYER, "--verb=get,create,patch,delete", "--resource=configmaps"),
        ("rolebinding", _DEPLOYER, f"--role={_DEPLOYER}", f"--serviceaccount={_SHOP}:{_DEPLOYER}"),
    ):
        await installed.ask(CLUSTER, "-n", _SHOP, "create", *words)
    resources = {
        "elsewhere": _resource("elsewhere", "default", "kube-public", serviceAccountName="web"),
        "deployed": _resource("deployed", _SHOP, _SHOP, serviceAccountName=_DEPLOYER),
    }
    for resource in resources.values():
        await installed.ask("hub", "create", "-f", "-", text=json.dumps(resource))
    for resource in resources.values():
        await eventually(lambda r=resource: _has_state(installed, r, "Failed", "Forbidden"), _SOON)
    await installed.take(Step("rights of an account", _RIGHTS, is_file=False))
    again = ("--type=merge", "-p", '{"spec":{"vars":{"tried":"again"}}}')
    patch = ("-n", _SHOP, "patch", "multiclusterresource", "deployed", *again)
    await installed.ask("hub", *patch)
    await eventually(lambda: _has_state(installed, resources["deployed"], "Applied"), _SOON)
    # Nothing is cleaned up where its account may not even look.
    web = ("rolebinding", "web", "--clusterrole=edit", "--serviceaccount=default:web")
    await installed.ask(CLUSTER, "-n", "kube-public", "create", *web)
    text = "\n---\n".join(map(json.dumps, resources.values()))
    await installed.ask("hub", "delete", "--timeout=2m", "-f", "-", text=text)
    for cluster in ("hub", CLUSTER):
        await installed.ask(cluster, "delete", "namespace", _SHOP, "--timeout=2m")
    await installed.ask(CLUSTER, "-n", "kube-public", "delete", "rolebinding", "web")


def _resource(name: str, namespace: str, target: str, **spec: str) -> Json:
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": target},
    }
    placement = {"clusters": [{"name": CLUSTER}]}
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": template, "placement": placement, **spec},
    }


async def _has_state(installed: Installation, resource: Json, state: str, reason: str = "") -> bool:
    metadata = resource["metadata"]
    query = ("multiclusterresource", metadata["name"], "-o", "jsonpath={.status.clusters}")
    text = await installed.ask("hub", "-n", metadata["namespace"], "get", *query)
    entries: list[Json] = json.loads(text) if text else []
    states = [(entry["state"], entry.get("reason", "")) for entry in entries]
    print(f"{metadata['name']}: {states}", flush=True)
    return len(states) == 1 and states[0][0] == state and reason in ("", states[0][1])


# --- the audit log --------------------------------------------------------------------------------


def events_of(audit_log: Path) -> Iterator[Json]:
    """The events of the audit log of an API server."""
    return map(json.loads, audit_log.read_text().splitlines())


def check_audit(behind: list[Json], direct: list[Json]) -> None:
    """Only the agent came from fleetbus, and it acted as the account that was named.

    Args:
        behind: events of the API server that only the agent reaches.
        direct: events of one that the hub reaches.
    """
    assert any(map(_is_from_hub, direct)), "requests of the hub's pods are not recognized"
    strangers = [event for event in behind if _is_from_hub(event)]
    assert not strangers, f"the hub's pods reached {CLUSTER}: {strangers[0]}"
    accounts = {event["user"]["username"] for event in behind}
    ours = {name for name in accounts if "fleetbus" in name}
    assert ours == {_AGENT}, f"accounts of fleetbus: {ours}"
    acted = [
        event
        for event in behind
        if event.get("impersonatedUser", {}).get("username")
        == f"system:serviceaccount:{_SHOP}:{_DEPLOYER}"
    ]
    actors = {event["user"]["username"] for event in acted}
    assert actors == {_AGENT}, f"acted as {_DEPLOYER}: {actors or 'nobody acted'}"
    written = {event["objectRef"].get("name") for event in acted if event["verb"] == "patch"}
    assert "deployed" in written, f"written as {_DEPLOYER}: {written}"


def _is_from_hub(event: Json) -> bool:
    return any(ip_address(source) in _HUB_PODS for source in event.get("sourceIPs", ()))


def _place(installed: Installation, cluster: str) -> SplitResult:
    document = cast("Json", yaml.load(installed.kubeconfigs[cluster].read_text(), yaml.CSafeLoader))
    server: str = document["clusters"][0]["cluster"]["server"]
    return urlsplit(server)
