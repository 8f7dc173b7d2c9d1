"""Options that several commands have, with one text each."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from fleetbus.errors import ConfigError


def output_option(*formats: str) -> Any:
    """`--output` with these formats."""

    def check(given: str) -> str:
        if given not in formats:
            raise ConfigError(f"--output {given!r} is not one of {', '.join(formats)}")
        return given

    return typer.Option(
        "--output", "-o", metavar="|".join(formats), help="Output format.", callback=check
    )


TableOrJson = Annotated[str, output_option("table", "json")]
NatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats-url",
        help="Address of NATS, like nats://127.0.0.1:4222; default: FLEETBUS_NATS_URL, else the"
        " fleet started here, else nats_url in ~/.fleetbus/config.yaml.",
    ),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--api-url",
        help="Address of the query API, like http://127.0.0.1:8080; default: FLEETBUS_API_URL,"
        " else the fleet started here, else api_url in ~/.fleetbus/config.yaml.",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="Address of Redis or Valkey, like redis://127.0.0.1:6379/0; default:"
        " FLEETBUS_REDIS_URL, else the fleet started here, else redis_url in"
        " ~/.fleetbus/config.yaml.",
    ),
]
DevFolder = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--dir",
        help="The folder in which `fleetbus dev up` or `make up` started the fleet; default: this"
        " one and those above.",
    ),
]
HubKubeconfig = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--hub-kubeconfig",
        help="Kubeconfig of the hub; default: FLEETBUS_HUB_KUBECONFIG, else the fleet started"
        " here, else KUBECONFIG.",
    ),
]
HubContext = Annotated[
    str, typer.Option("--hub-context", help="Its context; default: the current one.")
]
