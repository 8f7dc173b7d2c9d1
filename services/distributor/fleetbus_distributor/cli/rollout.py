"""Arguments of `fleetbus rollout`.

The command line imports this module to show its help, so what a command needs is imported when it
runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus_cli.options import HubContext, HubKubeconfig, TableOrJson

app = typer.Typer(
    name="rollout",
    help="Show and steer the rollout of a MultiClusterResource.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="The MultiClusterResource.")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Its namespace, if NAME has none.")
]


@app.command()
def status(
    name: Name,
    namespace: Namespace = "default",
    output: TableOrJson = "table",
    wait: Annotated[
        str,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="Wait this long, like 10m, for completion; exit with 1 if it is not reached.",
        ),
    ] = "",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
) -> None:
    """Show the waves, and what they wait for.

    The exit status is 1 if the rollout has failed.
    """
    from fleetbus_distributor.cli.run_rollout import run_status  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_status(name, namespace, output=output, wait=wait, hub=hub))


@app.command()
def history(
    name: Name,
    namespace: Namespace = "default",
    output: TableOrJson = "table",
    revision: Annotated[
        int,
        typer.Option(
            "--revision",
            help="Show the content of this revision, and its changes.",
            min=0,
            show_default=False,
        ),
    ] = 0,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
) -> None:
    """Show the kept revisions, or what one of them changed.

    Values of Secrets, and of fields with names like `password`, are left out.
    """
    from fleetbus_distributor.cli.run_rollout import (  # noqa: PLC0415 -- import cost
        run_history,
        run_revision,
    )

    hub = (hub_kubeconfig, hub_context)
    if revision:
        raise typer.Exit(run_revision(name, namespace, revision, output=output, hub=hub))
    raise typer.Exit(run_history(name, namespace, output=output, hub=hub))


@app.command()
def undo(
    name: Name,
    namespace: Namespace = "default",
    to_revision: Annotated[
        int,
        typer.Option(
            "--to-revision", help="Number of the revision. Default: the previous one.", min=0
        ),
    ] = 0,
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
) -> None:
    """Set the spec back to an earlier revision.

    The change is rolled out like any other edit; a tool that applies the spec from git would revert
    it.
    """
    from fleetbus_distributor.cli.run_rollout import run_undo  # noqa: PLC0415 -- import cost

    hub = (hub_kubeconfig, hub_context)
    raise typer.Exit(run_undo(name, namespace, to_revision=to_revision, hub=hub))


@app.command()
def pause(
    name: Name,
    namespace: Namespace = "default",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
) -> None:
    """Pause the rollout: open no further wave."""
    _set_paused(name, namespace, (hub_kubeconfig, hub_context), paused=True)


@app.command()
def resume(
    name: Name,
    namespace: Namespace = "default",
    hub_kubeconfig: HubKubeconfig = None,
    hub_context: HubContext = "",
) -> None:
    """Resume a paused rollout."""
    _set_paused(name, namespace, (hub_kubeconfig, hub_context), paused=False)


def _set_paused(
    name: str, namespace: str, hub: tuple[HubKubeconfig, HubContext], *, paused: bool
) -> None:
    from fleetbus_distributor.cli.run_rollout import set_paused  # noqa: PLC0415 -- import cost

    raise typer.Exit(set_paused(name, namespace, paused=paused, hub=hub))
