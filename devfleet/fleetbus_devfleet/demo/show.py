"""The frame of the demo: start a stack in a temporary folder, play the scenes, leave nothing."""

from __future__ import annotations

import asyncio
import shutil
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from fleetbus.errors import FleetbusError
from fleetbus_devfleet.checklist import Checklist
from fleetbus_devfleet.children import ChildError
from fleetbus_devfleet.demo import census
from fleetbus_devfleet.demo.narrator import ClaimError, Narrator
from fleetbus_devfleet.demo.scenes import Scenes
from fleetbus_devfleet.demo.witness import Witness
from fleetbus_devfleet.plan import Layout, PlanError, StackPlan, fleet_of
from fleetbus_devfleet.scratch import scratch_folder
from fleetbus_devfleet.servers import ServerMissingError
from fleetbus_devfleet.stack import Stack
from fleetbus_devfleet.state import is_alive

if TYPE_CHECKING:
    from fleetbus_devfleet.state import PartState

_KEPT_LOGS = Path(".fleetbus") / "demo-logs"
_END_PATIENCE = timedelta(seconds=5)
_INTERRUPTED = 130


def run(*, clusters: int) -> int:
    """Play the demo; returns the exit status: 1 when a claim did not hold."""
    console = Console(highlight=False)
    narrator = Narrator(console)
    try:
        with scratch_folder("demo") as folder:
            _play_in(folder, clusters=clusters, narrator=narrator)
    except (ClaimError, ChildError, PlanError, ServerMissingError, FleetbusError) as error:
        console.print(f"\n[bold red]✗ The demo failed:[/] {escape(str(error))}")
        if _KEPT_LOGS.exists():
            console.print(f"[dim]The logs of every process are in {_KEPT_LOGS}.[/]")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nInterrupted; everything is stopped.")
        return _INTERRUPTED
    console.print(
        f"\n[bold green]✓ Every claim held[/], in {narrator.elapsed:.0f} s. "
        "[cyan]make up[/] leaves such a fleet running for you."
    )
    return 0


def _play_in(folder: Path, *, clusters: int, narrator: Narrator) -> None:
    layout = Layout(root=folder / "stack")
    modules = (Path(census.__file__),)
    plan = StackPlan(layout=layout, clusters=fleet_of(clusters), modules=modules)
    shutil.rmtree(_KEPT_LOGS, ignore_errors=True)
    try:
        asyncio.run(_play(plan, narrator))
    except (ClaimError, ChildError, FleetbusError):
        # The folder is temporary, and whoever reads the message wants the logs.
        shutil.copytree(layout.root / "logs", _KEPT_LOGS)
        raise


async def _play(plan: StackPlan, narrator: Narrator) -> None:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    narrator.scene(
        "A fleet on this machine",
        f"{len(plan.clusters)} emulated clusters ({', '.join(plan.names)}), real NATS, real "
        "Valkey, a watcher per cluster, a reconciler, the distributor and the query API.",
    )
    checklist = Checklist(narrator.console, title="starting")
    stack = Stack(plan, tell=checklist.tell)
    try:
        with checklist:
            await stack.start()
        async with Witness(stack, namespace=census.NAMESPACE) as witness:
            await Scenes(stack=stack, witness=witness, narrator=narrator).play()
        parts = stack.state().parts
        narrator.scene("Stop", "Services first, then the clusters, Valkey and NATS.")
    finally:
        await stack.aclose()

    async def nothing_left() -> str:
        return _left(parts)

    await narrator.prove("no process is left", nothing_left, within=_END_PATIENCE)


def _left(parts: tuple[PartState, ...]) -> str:
    return ", ".join(part.name for part in parts if is_alive(part.pid))
