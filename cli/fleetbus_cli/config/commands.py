"""Arguments of `fleetbus config`."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus_cli.options import ApiUrl, NatsUrl, RedisUrl, TableOrJson

app = typer.Typer(help="Show which fleet the commands talk to.", no_args_is_help=True)
Dir = Annotated[
    str, typer.Option("--dir", help="Folder of a dev fleet, as for `fleetbus run --dir`.")
]


@app.callback()
def config() -> None:
    """Show which fleet the commands talk to."""


@app.command()
def view(
    output: TableOrJson = "table",
    folder: Dir = "",
    api_url: ApiUrl = None,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Show each address and its source: a flag, the environment, a dev fleet, or a file.

    Passwords and tokens are never printed.
    """
    from fleetbus_cli.config.view import show_config  # noqa: PLC0415 -- import cost

    flags = {"api_url": api_url, "nats_url": nats_url, "redis_url": redis_url}
    show_config(flags, folder, as_json=output == "json")
