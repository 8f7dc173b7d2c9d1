"""Arguments of `fleetbus rehearse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetbus_cli.options import NatsUrl, RedisUrl, output_option

rehearse = typer.Typer(name="rehearse", invoke_without_command=True, subcommand_metavar="")


@rehearse.callback()
def run_rehearse(
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="The MultiClusterResource.")
    ],
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            help="Break a cluster, like 'eu1 dies in wave 2': CLUSTER dies|returns|refuses"
            " RESOURCE|is slow|never becomes healthy [in wave N|after 10s]; may be repeated.",
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="File of `fleetbus capture`. Default: capture the fleet now.",
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Its namespace, if FILE has none.")
    ] = "default",
    vote: Annotated[
        list[str] | None,
        typer.Option("--vote", metavar="GATE=pass|fail", help="Vote on a gate; may be repeated."),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", min=1, help="Divide the timers of the rollout by this, down to 5s."
        ),
    ] = 20,
    timeout: Annotated[str, typer.Option("--timeout", help="Stop watching after this.")] = "5m",
    output: Annotated[str, output_option("text", "json")] = "text",
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Try a MultiClusterResource on emulated copies of the fleet.

    The real distributor rolls it out, with faults on purpose; no cluster of the fleet is contacted.
    The exit status is 0 if it completed, or stopped at the broken clusters.
    """
    from fleetbus.errors import ConfigError
    from fleetbus.process.durations import InvalidTime, parse_duration
    from fleetbus_devfleet.rehearsal.command import Request, run_rehearsal
    from fleetbus_devfleet.rehearsal.faults import Fault

    votes = dict[str, str]()
    for text in vote or []:
        gate, _, chosen = text.partition("=")
        if not gate or chosen not in ("pass", "fail"):
            raise ConfigError(f"--vote {text!r} is not of the form GATE=pass or GATE=fail")
        votes[gate] = chosen
    try:
        limit = parse_duration(timeout)
    except InvalidTime as error:
        raise ConfigError(f"--timeout {error}") from error
    request = Request(
        manifest=file,
        namespace=namespace,
        capture=capture,
        faults=[Fault.read(text) for text in fault or []],
        votes=votes,
        speed=speed,
        timeout=limit,
        output=output,
        nats_url=nats_url,
        redis_url=redis_url,
    )
    raise typer.Exit(run_rehearsal(request))
