"""`fleetbus replay`: drive reconcilers with recorded events, without touching anything."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from fleetbus.cli.options import NatsUrl


def replay(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE.jsonl]... MODULE...",
            help="Recordings, as `fleetbus events -o json` writes them (- for standard input),"
            " and Python files or modules that define controllers.",
        ),
    ],
    since: Annotated[
        str,
        typer.Option(
            "--since", help="Replay what the stream has since so long ago, like 10m or 2h."
        ),
    ] = "",
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="NAME[:LABEL=VALUE,…]",
            help="A cluster that the recording does not show, or the labels of one; repeatable.",
        ),
    ] = None,
    hub: Annotated[str, typer.Option("--hub", help="The name of the hub.")] = "",
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            help="A resource that the recording may lack, so that it counts as empty; repeatable.",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Send the writes; without it they are only printed.")
    ] = False,
    kubeconfig: Annotated[
        list[pathlib.Path] | None,
        typer.Option("--kubeconfig", help="With --live: the clusters, as in `fleetbus run`."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            help="An empty Redis or Valkey for the snapshot of the replay; by default one is"
            " started for it.",
        ),
    ] = "",
    output: Annotated[
        str, typer.Option("--output", "-o", help="diff or json (one write a line).")
    ] = "diff",
    nats_url: NatsUrl = None,
) -> None:
    """Drive reconcilers with recorded events and print the writes they would do.

    The replay has a snapshot and queues of its own; reads are answered from what was recorded.
    """
    from fleetbus.cli.replaying import Replay, run_replay  # noqa: PLC0415 -- import cost

    wanted = Replay.read(
        names,
        since=since,
        clusters=cluster or [],
        hub=hub,
        resources=resource or [],
        live=live,
        kubeconfigs=kubeconfig or [],
        store=store,
        output=output,
        nats_url=nats_url,
    )
    raise typer.Exit(run_replay(wanted))
