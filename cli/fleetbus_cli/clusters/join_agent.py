"""Runs `fleetbus join --agent`: prints what the member installs."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from fleetbus.agents.membership import LONGEST, join_agent
from fleetbus.errors import ConfigError, CredentialsError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.json_fields import mapping, string
from fleetbus.process import printer
from fleetbus.process.access.secret_files import SecretFile
from fleetbus.process.durations import InvalidTime, parse_duration
from fleetbus_cli.clusters.agent_manifest import NAMESPACE, AgentInstall, helm_values, manifest
from fleetbus_cli.clusters.join import label_pair
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.yaml_text import dump

_HUB: Final = "fleetbus-agents"
"""The ConfigMap of the chart that says how agents reach the hub."""
RIGHTS: Final = {"read-only": "readOnly", "namespaces": "namespaces", "full": "full"}


def join_with_agent(
    name: str,
    *,
    labels: Sequence[str],
    hub: Hub,
    namespace: str,
    expires: str = "24h",
    helm: bool = False,
    nats: str = "",
    nats_ca: pathlib.Path | None = None,
    rights: str = "",
    writable: Sequence[str] = (),
) -> int:
    """Join a cluster through an agent; return the exit status.

    Raises:
        ConfigError: an option is invalid, or the hub has no agents.
    """
    config = resolve_hub(hub)
    pairs = dict(map(label_pair, labels))
    lifetime = _lifetime(expires)
    mode = _mode(rights, writable)
    ca = _read_ca(nats_ca)

    async def main() -> int:
        async with KubeClient(config) as client:
            settings = await _hub_of_agents(client, namespace)
            url = nats or settings.get("url", "")
            if not url:
                raise ConfigError(
                    "--nats is needed: the address under which the member reaches NATS, like"
                    " tls://nats.example.com:4222 (agents.url of the chart makes it the default)"
                )
            seed = await join_agent(
                client, name, namespace=namespace, labels=pairs, expires=lifetime
            )
        install = AgentInstall(
            cluster=name,
            url=url,
            ca=ca or settings.get("ca.crt", ""),
            seed=seed,
            image=settings["image"],
            rights=mode,
            namespaces=tuple(writable),
        )
        _print(install, helm=helm)
        _tell(name, expires, needs_approval=settings.get("approval") == "true")
        return 0

    return run_on_hub(main())


async def _hub_of_agents(client: KubeClient, namespace: str) -> dict[str, str]:
    found = await client.get("v1/configmaps", namespace, _HUB)
    data = mapping(found, "data")
    if found is None or not string(data, "image"):
        raise ConfigError(
            f"the hub has no agents: ConfigMap {namespace}/{_HUB} is missing; set agents.enabled of"
            " the chart fleetbus, or --namespace to its clusters.namespace; a development fleet"
            " has agents with `fleetbus dev up --agents N`"
        )
    return {key: string(data, key) for key in data}


def _lifetime(expires: str) -> timedelta:
    try:
        lifetime = parse_duration(expires)
    except InvalidTime as e:
        raise ConfigError(f"--expires {e}") from e
    if not timedelta(minutes=1) <= lifetime <= LONGEST:
        raise ConfigError(f"--expires {expires}: between 1m and {LONGEST.days}d")
    return lifetime


def _mode(rights: str, writable: Sequence[str]) -> str:
    chosen = rights or ("namespaces" if writable else "read-only")
    if chosen not in RIGHTS:
        raise ConfigError(f"--rights {chosen!r}: one of {', '.join(RIGHTS)}")
    if writable and chosen != "namespaces":
        raise ConfigError(f"--writable needs --rights namespaces, not {chosen}")
    if chosen == "namespaces" and not writable:
        raise ConfigError("--rights namespaces needs --writable NAMESPACE, once or more often")
    return RIGHTS[chosen]


def _read_ca(path: pathlib.Path | None) -> str:
    if path is None:
        return ""
    try:
        text = SecretFile("--nats-ca", path).read()
    except CredentialsError as e:
        raise ConfigError(str(e)) from e
    if "BEGIN CERTIFICATE" not in text or "PRIVATE KEY" in text:
        raise ConfigError(f"--nats-ca {path}: no certificate in PEM")
    return text + "\n"


def _print(install: AgentInstall, *, helm: bool) -> None:
    if not helm:
        printer.block("---\n".join(dump(obj) for obj in manifest(install)).rstrip())
        return
    # Values on stdin: the seed stays out of the list of processes, and the CA needs no file.
    words = ["helm", "install", NAMESPACE, "CHART", "--namespace", NAMESPACE, "--create-namespace"]
    values = dump(helm_values(install)).rstrip()
    printer.block(f"{shlex.join(words)} --values - <<'EOF'\n{values}\nEOF")


def _tell(name: str, expires: str, *, needs_approval: bool) -> None:
    """Next steps, on stderr: stdout is for `kubectl apply -f -`."""
    lines = [
        f"cluster {name} joined the fleet",
        f"what is printed installs its agent, within {expires}: `kubectl apply -f -` in the member",
        "it has a one-time secret: do not keep it",
    ]
    if needs_approval:
        lines.append(f"then, on the hub: fleetbus clusters accept {name}")
    for line in lines:
        printer.note(line)
