"""The frame of the demo: start a stack in a temporary folder, play the scenes, leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from fleetbus.errors import FleetbusError
from fleetbus.process import printer
from fleetbus_devfleet.checklist import Checklist
from fleetbus_devfleet.console import Console, page_console
from fleetbus_devfleet.demo import census
from fleetbus_devfleet.demo.narrator import ClaimError, Narrator, spell
from fleetbus_devfleet.demo.scenes import Scenes, latency_rows
from fleetbus_devfleet.demo.stage import Stage
from fleetbus_devfleet.demo.witness import Witness
from fleetbus_devfleet.processes.children import ChildError
from fleetbus_devfleet.processes.servers import ServerMissingError
from fleetbus_devfleet.stack.plan import Layout, PlanError, StackPlan, fleet_of
from fleetbus_devfleet.stack.stack import Stack
from fleetbus_devfleet.stack.state import is_alive
from fleetbus_emulator.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_devfleet.demo.stopwatch import Latency
    from fleetbus_devfleet.stack.state import PartState

_KEPT_LOGS = Path(".fleetbus") / "demo-logs"
_END_PATIENCE = timedelta(seconds=5)
_INTERRUPTED = 130
# What a pipe is taken to be wide, when nobody says: no line of ours is longer.
_PIPE_WIDTH = 100
_EXPECTED = (ClaimError, ChildError, PlanError, ServerMissingError, FleetbusError)


def run(*, clusters: int, orders: int, instant: bool) -> int:
    """Play the demo; returns the exit status: 1 when a claim did not hold.

    Args:
        clusters: how many.
        orders: how many changes are timed.
        instant: Pods start and stop at once.
    """
    console = _console()
    narrator = Narrator(console)
    shutil.rmtree(_KEPT_LOGS, ignore_errors=True)
    try:
        with scratch_folder("demo") as folder:
            modules = (Path(census.__file__),)
            plan = StackPlan(
                layout=Layout(root=folder / "stack"),
                clusters=fleet_of(clusters, agents=1),
                modules=modules,
                instant=instant,
            )
            latencies = _play_and_keep_logs(plan, narrator, orders)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nInterrupted; every process is stopped.")
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the top: whatever failed is shown to the viewer
        text = str(error) if isinstance(error, _EXPECTED) else f"{type(error).__name__}: {error}"
        console.print(f"\n[bold red]✗ The demo failed:[/] {escape(text)}")
        if _KEPT_LOGS.exists():
            console.print(f"The logs of every process are in {_KEPT_LOGS}.")
        return 1
    _print_summary(narrator, latencies)
    return 0


def _console() -> Console:
    printer.replace_unencodable()  # a terminal that cannot show a check mark
    return page_console(pipe_width=_PIPE_WIDTH)


def _play_and_keep_logs(plan: StackPlan, narrator: Narrator, orders: int) -> list[Latency]:
    try:
        return asyncio.run(_play(plan, narrator, orders))
    except Exception:
        # The folder is temporary, and whoever reads the message wants the logs.
        with contextlib.suppress(OSError):
            shutil.copytree(plan.layout.root / "logs", _KEPT_LOGS)
            (_KEPT_LOGS / "demo.log").write_text(traceback.format_exc(), encoding="utf-8")
        raise


async def _play(plan: StackPlan, narrator: Narrator, orders: int) -> list[Latency]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    narrator.scene(
        "A fleet on this machine",
        f"{len(plan.clusters)} emulated clusters ({', '.join(plan.names)}), real NATS, real "
        "Valkey, a watcher per cluster, the reconciler, the distributor and the query API. The hub "
        f"cannot reach {', '.join(plan.behind_agents)}, in which there is an agent.",
    )
    checklist = Checklist(narrator.console, title="starting")
    stack = Stack(plan, report=checklist.report)
    try:
        with checklist:
            await stack.start()
        async with Witness(stack, namespace=census.NAMESPACE) as witness:
            stage = Stage(stack=stack, witness=witness, tell=narrator)
            latencies = await Scenes(stage, timed=orders).play()
        parts = stack.state().parts
        narrator.scene("Stop", "The services first, then the clusters, Valkey and NATS.")
    finally:
        await stack.aclose()

    async def nothing_left() -> str:
        return _left(parts)

    await narrator.prove(
        f"{len(parts)} processes have ended, none is left", nothing_left, within=_END_PATIENCE
    )
    return latencies


def _left(parts: tuple[PartState, ...]) -> str:
    return ", ".join(part.name for part in parts if is_alive(part.pid))


def _print_summary(narrator: Narrator, latencies: Sequence[Latency]) -> None:
    table = Table(box=None, header_style="bold dim", padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("FROM A CHANGE UNTIL", "MEDIAN", "WORST"):
        table.add_column(column)
    for row in latency_rows(latencies):
        table.add_row(*row)
    content = Table.grid()
    content.add_row(table)
    content.add_row("")
    content.add_row("[cyan]fleetbus dev up[/] starts such a fleet and leaves it running for you.")
    title = f"✓ All {narrator.proved} claims held, in {spell(narrator.elapsed)}"
    narrator.console.print()
    narrator.console.print(
        Panel.fit(content, title=f"[bold green]{title}[/]", border_style="green", padding=(1, 2))
    )
