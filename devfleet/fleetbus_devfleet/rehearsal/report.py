"""Prints a rehearsal, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.table import Table

from fleetbus_devfleet.console import Console, page_console
from fleetbus_devfleet.rehearsal.outcome import count_held

if TYPE_CHECKING:
    from fleetbus_devfleet.rehearsal.outcome import ClusterResult, Rehearsal

_SHOWN: Final = 10


def print_rehearsal(rehearsal: Rehearsal) -> None:
    """Print waves, clusters, writes, and the result last."""
    out = page_console()
    if rehearsal.waves:
        out.print(_waves(rehearsal))
        out.print()
    out.print(_clusters(rehearsal))
    for cluster in rehearsal.clusters:
        for verb, objects in (
            ("create", cluster.created),
            ("change", cluster.changed),
            ("delete", cluster.deleted),
        ):
            _print_objects(out, f"{cluster.name}: would {verb}", objects)
    if rehearsal.held:
        deletion = rehearsal.held
        clusters = ", ".join(deletion.get("clusters") or [])
        out.print(f"held: the deletion of {count_held(deletion)} in {escape(clusters)}")
    for text, at in rehearsal.faults:
        out.print(f"fault: {escape(text)}, at {at:.1f} s")
    for text in rehearsal.missed:
        out.print(f"fault: {escape(text)}: did not happen, its wave never opened")
    for note in rehearsal.notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
    style = "green" if rehearsal.is_good else "red"
    text = f"{rehearsal.result} after {rehearsal.seconds:.1f} s[/]: {escape(rehearsal.why)}"
    out.print(f"[bold {style}]{text}", soft_wrap=True)


def _print_objects(out: Console, title: str, objects: list[str]) -> None:
    if objects:
        more = [f"and {len(objects) - _SHOWN} more"] if len(objects) > _SHOWN else []
        out.print(f"{title} {escape(', '.join([*objects[:_SHOWN], *more]))}", soft_wrap=True)


def _waves(rehearsal: Rehearsal) -> Table:
    table = _table("WAVE", "CLUSTERS", "PHASE", "OPENED", "ENDED", "MESSAGE")
    for wave in rehearsal.waves:
        times = [f"{at:.1f} s" if at is not None else "-" for at in (wave.opened, wave.ended)]
        names = ", ".join(wave.clusters)
        table.add_row(wave.name, escape(names), wave.phase, *times, escape(wave.message))
    return table


def _clusters(rehearsal: Rehearsal) -> Table:
    table = _table("CLUSTER", "WAVE", "STATE", "HEALTH", "WRITTEN", "LEFT ALONE", "WHY")
    for cluster in rehearsal.clusters:
        table.add_row(
            cluster.name,
            cluster.wave or "-",
            cluster.state,
            cluster.health or "-",
            _written(cluster),
            str(cluster.left_alone),
            escape(cluster.message or cluster.reason),
        )
    return table


def _written(cluster: ClusterResult) -> str:
    counts = ((cluster.created, "+"), (cluster.changed, "~"), (cluster.deleted, "-"))
    return " ".join(f"{sign}{len(objects)}" for objects, sign in counts if objects) or "-"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
