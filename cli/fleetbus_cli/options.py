"""Options shared by several commands."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any, Final

import typer

from fleetbus.errors import ConfigError


def output_option(*formats: str) -> Any:
    """Declare `--output` with these formats."""

    def check(value: str) -> str:
        if value not in formats:
            raise ConfigError(f"--output {value!r} is not one of {', '.join(formats)}")
        return value

    return typer.Option(
        "--output", "-o", metavar="|".join(formats), help="Output format.", callback=check
    )


TableOrJson = Annotated[str, output_option("table", "json")]
NatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats-url",
        help="NATS address, like nats://127.0.0.1:4222. Default: FLEETBUS_NATS_URL, else the dev"
        " fleet of this folder, else nats_url in ~/.fleetbus/config.yaml.",
    ),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--api-url",
        help="Query API address, like http://127.0.0.1:8080. Default: FLEETBUS_API_URL, else the"
        " dev fleet of this folder, else api_url in ~/.fleetbus/config.yaml.",
    ),
]
ApiTokenText = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="Bearer token for the query API. Other users of this machine can see it in the"
        " process list: prefer --token-file. Default: FLEETBUS_TOKEN, else the token of the"
        " current context of the kubeconfig, if the address is https.",
    ),
]
ApiTokenFile = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--token-file",
        help="File with the bearer token for the query API. Default: FLEETBUS_API_TOKEN_FILE.",
    ),
]
ApiCaFile = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--ca-file",
        help="PEM file with the CA of the query API's certificate. Default: FLEETBUS_API_CA_FILE,"
        " else the CAs that this machine trusts.",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="Redis or Valkey address, like redis://127.0.0.1:6379/0. Default:"
        " FLEETBUS_REDIS_URL, else the dev fleet of this folder, else redis_url in"
        " ~/.fleetbus/config.yaml.",
    ),
]
DevFolder = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--dir",
        help="Folder of the fleet that `fleetbus dev up` or `make up` started. Default: this"
        " folder or the nearest parent that has one.",
    ),
]
HubKubeconfig = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--hub-kubeconfig",
        help="Kubeconfig of the hub. Default: FLEETBUS_HUB_KUBECONFIG, else the dev fleet of this"
        " folder, else KUBECONFIG.",
    ),
]
HubContext = Annotated[
    str,
    typer.Option(
        "--hub-context", help="Context in the hub's kubeconfig. Default: the current one."
    ),
]

CLUSTERS_NAMESPACE: Final = "fleetbus-clusters"
"""`leaving.NAMESPACE`, which costs an import."""
ClustersNamespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of fleetbus on the hub, for kubeconfigs and records of unjoined clusters;"
        " clusters.namespace of the chart.",
        envvar="FLEETBUS_CLUSTERS_NAMESPACE",
    ),
]
