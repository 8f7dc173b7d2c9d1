"""Runs `fleetbus join --bootstrap`: limited accounts there, their kubeconfigs on the hub."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process import printer
from fleetbus.process.clock import rfc3339
from fleetbus.process.durations import InvalidTime, parse_duration
from fleetbus_cli.bootstrap.enroll import Enrolled, enroll
from fleetbus_cli.bootstrap.options import RELEASE, BootstrapOptions, HubPlaces
from fleetbus_cli.bootstrap.selection import SECRETS
from fleetbus_cli.clusters.join import label_pair
from fleetbus_cli.documents import render_json, render_yaml
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub

_SHOWN: Final = 6
"""So many resources are listed on one line."""


def bootstrap_cluster(
    name: str,
    file: pathlib.Path,
    *,
    context: str,
    labels: Sequence[str],
    insecure: bool,
    http: bool,
    check: bool,
    hub: Hub,
    namespace: str,
    watch: Sequence[str] | None = None,
    write: Sequence[str] | None = None,
    impersonate: Sequence[str] | None = None,
    read_only: bool = False,
    pool: bool | None = None,
    server: str = "",
    lifetime: str = "24h",
    release_namespace: str = RELEASE,
    output: str = "text",
) -> int:
    """Join a cluster with limited accounts; return the exit status.

    Raises:
        ConfigError: an option is invalid, or the cluster cannot join.
    """
    if output not in _RENDER:
        raise ConfigError(f"--output {output!r} is not one of {', '.join(_RENDER)}")
    for option, value in (("--write", write), ("--impersonate", impersonate)):
        if value and read_only:
            raise ConfigError(f"{option} and --read-only contradict each other")
    options = BootstrapOptions(
        places=HubPlaces(namespace, release_namespace),
        watched=watch or None,
        written=[] if read_only else write or None,
        impersonated=[] if read_only else _named(impersonate),
        pool=pool,
        server=server,
        lifetime=_duration(lifetime),
        labels=dict(map(label_pair, labels)),
        insecure=insecure,
        http=http,
        check=check,
    )
    admin, hub_config = read_kube_config(file, context), resolve_hub(hub)

    async def main() -> int:
        async with KubeClient(hub_config) as client:
            printer.block(_RENDER[output](await enroll(client, name, admin, options)))
        return 0

    return run_on_hub(main())


def _named(accounts: Sequence[str] | None) -> list[str] | None:
    """None without any option, so that what an earlier join chose is kept; '' is none at all."""
    return [account for account in accounts if account] if accounts else None


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except InvalidTime as e:
        raise ConfigError(f"--lifetime {e}") from e


def _for_tools(enrolled: Enrolled) -> dict[str, Any]:
    access = enrolled.access
    return {
        "cluster": access.cluster,
        "uid": enrolled.uid,
        "watchedResources": list(map(str, access.watched)),
        "writtenResources": list(map(str, access.written)),
        "impersonatedAccounts": list(map(str, access.impersonated)),
        "onCluster": list(map(str, enrolled.on_member)),
        "onHub": list(enrolled.on_hub),
        "tokensExpire": rfc3339(enrolled.expires, timespec="seconds"),
        "values": _values(enrolled),
    }


def _values(enrolled: Enrolled) -> dict[str, Any]:
    """The chart's values for the cluster's own watcher; empty for the pool."""
    if not enrolled.watcher_secret:
        return {}
    watch: dict[str, Any] = {"resources": list(map(str, enrolled.access.watched))}
    if any(resource.key == SECRETS for resource in enrolled.access.watched):
        watch["secrets"] = True
    entry = {
        "name": enrolled.access.cluster,
        "kubeconfigSecret": {"name": enrolled.watcher_secret},
        "watch": watch,
    }
    return {"watchers": {"clusters": [entry]}}


def _for_people(enrolled: Enrolled) -> str:
    access = enrolled.access
    name = access.cluster
    expires = rfc3339(enrolled.expires, timespec="seconds")
    lines = [
        f"cluster {name} joined the fleet",
        f"  watched: {_listed(list(map(str, access.watched)))}",
        f"  written: {_listed(list(map(str, access.written)))}",
        f"  impersonated: {_listed(list(map(str, access.impersonated)))}",
        f"  created on {name}: {', '.join(map(str, enrolled.on_member))}",
        f"  written to the hub: {', '.join(enrolled.on_hub)}",
        f"  tokens expire at {expires}; the projector renews them after half of their lifetime",
    ]
    lines += (
        _watcher_steps(enrolled)
        if enrolled.watcher_secret
        else ["the pool watches the cluster from now on"]
    )
    lines.append(f"fleetbus unjoin {name} --file FILE removes all of this again; its objects stay")
    return "\n".join(lines)


def _watcher_steps(enrolled: Enrolled) -> list[str]:
    name = enrolled.access.cluster
    secret = next(
        entry for entry in enrolled.on_hub if entry.endswith(f"/{enrolled.watcher_secret}")
    )
    namespace = secret.removeprefix("Secret ").partition("/")[0]
    read = f"kubectl get secret -n {namespace} {enrolled.watcher_secret}"
    return [
        "add this entry to the list watchers.clusters in the values of the chart;",
        "only then is the watcher's token renewed:",
        render_yaml(_values(enrolled)).rstrip(),
        "or run its watcher yourself, with FLEETBUS_NATS_URL set; this copy of its token expires:",
        f"  {read} -o jsonpath='{{.data.kubeconfig}}' | base64 -d > {name}.kubeconfig",
        f"  fleetbus-watcher --cluster {name} --kubeconfig {name}.kubeconfig",
    ]


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names[:_SHOWN])
    return f"{text} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else text or "nothing"


_RENDER: Final[dict[str, Callable[[Enrolled], str]]] = {
    "text": _for_people,
    "json": lambda enrolled: render_json(_for_tools(enrolled)),
    "yaml": lambda enrolled: render_yaml(_for_tools(enrolled)).rstrip(),
}
