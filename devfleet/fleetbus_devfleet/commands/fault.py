"""`fleetbus dev fault`: break the emulated clusters of a running fleet, and mend them.

The words are those of the admin endpoint's JSON: `fail status=429 verb=list count=2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fleetbus_devfleet.commands.admin import (
    ALL,
    WRONG,
    AdminUrl,
    Clusters,
    One,
    names_of,
    run_admin,
)
from fleetbus_devfleet.commands.options import DEFAULT_FOLDER, Folder, Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from fleetbus_emulator.apiserver.admin import AdminClient

Answer = TypeVar("Answer")

fault = typer.Typer(
    name="fault",
    help="Inject faults into the emulated clusters, and heal them.",
    no_args_is_help=True,
)


@fault.command()
def add(
    clusters: Clusters,
    action: Annotated[str, typer.Argument(help="What happens; see `fault actions`.")],
    fields: Annotated[
        list[str] | None,
        typer.Argument(help="The fields of the rule: status=429 verb=list resource=pods count=2"),
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    url: AdminUrl = "",
) -> None:
    """Add a rule: which requests, which action, how often."""
    from fleetbus_devfleet.commands import fault_report
    from fleetbus_emulator.apiserver.faults import FieldError
    from fleetbus_emulator.apiserver.faults.documents import (
        json_from_words,
    )

    try:
        document = json_from_words(action, fields or [])
    except FieldError as error:
        fault_report.print_failure(str(error))
        raise typer.Exit(WRONG) from None

    async def ask(admin: AdminClient) -> list[tuple[str, dict[str, Any]]]:
        names = await names_of(admin, clusters)
        return [(name, await admin.add_fault_document(name, document)) for name in names]

    fault_report.print_added(_run(ask, folder, url))


@fault.command(name="list")
def list_faults(
    clusters: Clusters = ALL,
    folder: Folder = DEFAULT_FOLDER,
    url: AdminUrl = "",
    output: OutputOption = Output.table,
) -> None:
    """Show the faults: rules, partitions, stopped API servers."""
    from fleetbus_devfleet.commands import fault_report

    async def ask(admin: AdminClient) -> list[fault_report.ClusterFaults]:
        faults: list[fault_report.ClusterFaults] = []
        for name in await names_of(admin, clusters):
            info, rules = await admin.cluster(name), await admin.fault_documents(name)
            faults.append(fault_report.ClusterFaults(info, rules))
        return faults

    faults_by_cluster = _run(ask, folder, url)
    if output is Output.json:
        fault_report.print_json(faults_by_cluster)
    else:
        fault_report.print_list(faults_by_cluster)


@fault.command()
def remove(
    cluster: One,
    rule: Annotated[int, typer.Argument(help="The id of the rule, as `fault list` shows it.")],
    folder: Folder = DEFAULT_FOLDER,
    url: AdminUrl = "",
) -> None:
    """Remove one rule; requests that it holds continue."""
    from fleetbus_devfleet.commands import fault_report

    removed = _run(lambda admin: admin.remove_fault(cluster, rule), folder, url)
    fault_report.print_line(f"{cluster}: rule {rule} is removed; it had {removed.hits} hits.")


@fault.command()
def heal(clusters: Clusters = ALL, folder: Folder = DEFAULT_FOLDER, url: AdminUrl = "") -> None:
    """End all faults: rules, partitions, stopped API servers."""
    from fleetbus_devfleet.commands import fault_report

    async def ask(admin: AdminClient) -> list[str]:
        names = await names_of(admin, clusters)
        for name in names:
            await admin.clear_faults(name)
            await admin.heal(name)
            await admin.start(name)
        return names

    healed = ", ".join(_run(ask, folder, url))
    fault_report.print_line(f"Healed: nothing is broken in {healed} any more.")


@fault.command()
def partition(
    clusters: Clusters,
    how: Annotated[
        str, typer.Argument(help="refuse, hang, lose-requests or lose-answers.")
    ] = "hang",
    folder: Folder = DEFAULT_FOLDER,
    url: AdminUrl = "",
) -> None:
    """Cut whole clusters off, until `fault heal`."""
    from fleetbus_devfleet.commands import fault_report
    from fleetbus_emulator.apiserver import Partition

    if how not in list(Partition):
        fault_report.print_failure(f"how: must be one of {', '.join(Partition)}")
        raise typer.Exit(WRONG)

    async def ask(admin: AdminClient) -> list[str]:
        names = await names_of(admin, clusters)
        for name in names:
            await admin.partition(name, Partition(how))
        return names

    fault_report.print_line(f"{', '.join(_run(ask, folder, url))}: cut off ({how}).")


@fault.command()
def compact(clusters: Clusters, folder: Folder = DEFAULT_FOLDER, url: AdminUrl = "") -> None:
    """Compact the event log: older pages and watches get 410."""
    from fleetbus_devfleet.commands import fault_report

    async def ask(admin: AdminClient) -> list[str]:
        infos = [await admin.compact(name) for name in await names_of(admin, clusters)]
        return [f"{info.name}: compacted at {info.resource_version}." for info in infos]

    for line in _run(ask, folder, url):
        fault_report.print_line(line)


@fault.command()
def roll_back(
    cluster: One,
    resource_version: Annotated[int, typer.Argument(help="The past revision to return to.")],
    folder: Folder = DEFAULT_FOLDER,
    url: AdminUrl = "",
) -> None:
    """Return to a past state, as after restoring etcd from a backup."""
    from fleetbus_devfleet.commands import fault_report

    info = _run(lambda admin: admin.roll_back(cluster, resource_version), folder, url)
    fault_report.print_line(f"{cluster}: is at {info.resource_version} again.")


@fault.command()
def swap_uid(cluster: One, folder: Folder = DEFAULT_FOLDER, url: AdminUrl = "") -> None:
    """Put another cluster, with another UID, behind the same address."""
    from fleetbus_devfleet.commands import fault_report

    info = _run(lambda admin: admin.swap_uid(cluster), folder, url)
    fault_report.print_line(f"{cluster}: is {info.uid} now.")


@fault.command()
def actions() -> None:
    """Show the actions of rules, and their fields."""
    from fleetbus_devfleet.commands import fault_report

    fault_report.print_actions()


def _run(ask: Callable[[AdminClient], Awaitable[Answer]], folder: Path, url: str) -> Answer:
    from fleetbus_devfleet.commands import fault_report

    return run_admin(ask, folder, url, fault_report.print_failure)
