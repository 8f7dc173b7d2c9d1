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


def print_rehearsal(found: Rehearsal) -> None:
    """Print waves, clusters, writes, and the result last."""
    out = page_console()
    if found.waves:
        out.print(_waves(found))
        out.print()
    out.print(_clusters(found))
    for one in found.clusters:
        for verb, objects in (
            ("create", one.created),
            ("change", one.changed),
            ("delete", one.deleted),
        ):
            _print_objects(out, f"{one.name}: would {verb}", objects)
    if found.held:
        held = found.held
        clusters = ", ".join(held.get("clusters") or [])
        out.print(f"held: the deletion of {count_held(held)} in {escape(clusters)}")
    for text, at in found.faults:
        out.print(f"fault: {escape(text)}, at {at:.1f} s")
    for text in found.missed:
        out.print(f"fault: {escape(text)}: did not happen, its wave never opened")
    for note in found.notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
    style = "green" if found.is_good else "red"
    text = f"{found.result} after {found.seconds:.1f} s[/]: {escape(found.why)}"
    out.print(f"[bold {style}]{text}", soft_wrap=True)


def _print_objects(out: Console, title: str, objects: list[str]) -> None:
    if objects:
        more = [f"and {len(objects) - _SHOWN} more"] if len(objects) > _SHOWN else []
        out.print(f"{title} {escape(', '.join([*objects[:_SHOWN], *more]))}", soft_wrap=True)


def _waves(found: Rehearsal) -> Table:
    table = _table("WAVE", "CLUSTERS", "PHASE", "OPENED", "ENDED", "MESSAGE")
    for one in found.waves:
        times = [f"{at:.1f} s" if at is not None else "-" for at in (one.opened, one.ended)]
        names = ", ".join(one.clusters)
        table.add_row(one.name, escape(names), one.phase, *times, escape(one.message))
    return table


def _clusters(found: Rehearsal) -> Table:
    table = _table("CLUSTER", "WAVE", "STATE", "HEALTH", "WRITTEN", "LEFT ALONE", "WHY")
    for one in found.clusters:
        table.add_row(
            one.name,
            one.wave or "-",
            one.state,
            one.health or "-",
            _written(one),
            str(one.left_alone),
            escape(one.message or one.reason),
        )
    return table


def _written(one: ClusterResult) -> str:
    counts = ((one.created, "+"), (one.changed, "~"), (one.deleted, "-"))
    return " ".join(f"{sign}{len(objects)}" for objects, sign in counts if objects) or "-"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
