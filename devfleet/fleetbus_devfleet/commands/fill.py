"""`fleetbus dev fill`: realistic objects for the emulated clusters of a running fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetbus_devfleet.commands.admin import ALL, AdminUrl, Clusters, names_of, run_admin
from fleetbus_devfleet.commands.options import DEFAULT_FOLDER, Folder

if TYPE_CHECKING:
    from pathlib import Path

    from fleetbus_emulator.apiserver.admin import AdminClient

SHOWN_TYPES = 6


def fill(
    objects: Annotated[
        int, typer.Option("--objects", min=1, help="Number of objects in each cluster.")
    ],
    clusters: Clusters = ALL,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same objects.")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="A type to create, like v1/pods; may be repeated."),
    ] = None,
    canary: Annotated[
        str, typer.Option("--canary", help="A string to put into every Secret, to look for leaks.")
    ] = "",
    hostile: Annotated[
        bool, typer.Option("--hostile", help="Mix in objects that are valid and hard to handle.")
    ] = False,
    folder: Folder = DEFAULT_FOLDER,
    url: AdminUrl = "",
) -> None:
    """Fill clusters with realistic objects.

    The simulated controllers have nothing to do with them. Running it again replaces them.
    """
    document = {
        "objects": objects,
        "seed": seed,
        "only": only or [],
        "canary": canary,
        "hostile": hostile,
    }
    fill_clusters(clusters, document, folder, url)


def fill_clusters(clusters: str, document: dict[str, Any], folder: Path, url: str = "") -> None:
    """Fill the clusters that an argument names and say what came; failures end the command."""
    import time

    from fleetbus_devfleet.console import lines_console
    from fleetbus_emulator.generate.endpoint import Progress, ask_to_fill

    out = lines_console()

    async def ask(admin: AdminClient) -> None:
        for name in await names_of(admin, clusters):
            progress, begun = Progress(0), time.monotonic()
            with out.status(f"filling {name}") as status:
                async for progress in ask_to_fill(admin, name, document):
                    status.update(
                        f"filling {name}: {progress.objects:,} of {document['objects']:,}"
                    )
            seconds = time.monotonic() - begun
            out.print(
                f"{name}: {progress.objects:,} objects in {seconds:.1f} s: {_by_type(progress)}"
            )

    run_admin(ask, folder, url)


def _by_type(progress: Any) -> str:
    """The most frequent types, and how many others there are."""
    counts = list(progress.types.items())
    parts = [f"{count:,} {gvr.rpartition('/')[2]}" for gvr, count in counts[:SHOWN_TYPES]]
    other_count = len(counts) - SHOWN_TYPES
    return ", ".join([*parts, *([f"{other_count} other types"] if other_count > 0 else [])])
