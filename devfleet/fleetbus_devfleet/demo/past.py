"""The scene about the past: what happened to one object, and an accident that is undone."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from fleetbus.process.clock import rfc3339
from fleetbus_devfleet.demo.census import NAMESPACE, ORDERS
from fleetbus_devfleet.demo.checks import Checks
from fleetbus_devfleet.demo.narrator import ClaimError
from fleetbus_devfleet.demo.stage import CONFIGMAPS, SOON, WEB, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = 8
"""Changes of a timeline."""
_IMAGE = ".image"
_COMMAND = Path(sys.executable).with_name("fleetbus")


class PastScene:
    """Shows a timeline, deletes objects by accident, and puts them back.

    Args:
        stage: the running stack, its witness and the narrator.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._witness = stage.witness
        self._tell = stage.tell
        self._check = Checks(stage)

    async def play(self) -> None:
        """Raises ClaimError when something it claims does not hold."""
        cluster = self._stage.members[0]
        self._tell.scene(
            "What happened here? And undo",
            f"The stream has the past: fleetbus timeline {cluster} deploy {NAMESPACE}/{WEB} shows "
            f"every change. Then somebody deletes all orders of {cluster} by accident.",
        )
        await self._show_timeline(cluster)
        await self._undo(cluster)

    async def _show_timeline(self, cluster: str) -> None:
        entries = await self._witness.api.timeline(cluster, "deployments.apps", NAMESPACE, WEB)
        rows = [row for entry in entries for row in _rows(entry)]
        if not rows:
            raise ClaimError("the timeline of the Deployment has no change of its image")
        self._tell.table(("AT", "CHANGE", "FROM", "TO"), rows[-_SHOWN:])

    async def _undo(self, cluster: str) -> None:
        before = await self._orders(cluster)
        since = rfc3339(datetime.now(UTC))
        for name in before:
            await self._witness.cluster(cluster).delete(CONFIGMAPS, NAMESPACE, name)
        self._tell.alarm(f"{len(before)} orders of {cluster} are deleted")

        async def unseen() -> str:
            items = await self._witness.api.list(CONFIGMAPS, NAMESPACE, ORDERS)
            left = sum(item.cluster == cluster for item in items)
            return f"{left} orders are still in the snapshot" if left else ""

        await self._tell.prove("the fleet says that they are gone", unseen, within=SOON)
        words = ["restore", "configmaps", "--since", since, "-l", ORDERS, "--cluster", cluster]
        self._tell.say(f"[cyan]fleetbus {escape(' '.join(words))} --apply[/]")
        await self._run(*words, "--apply")

        async def missing() -> str:
            now = await self._orders(cluster)
            return "" if now == before else f"{len(now)} of {len(before)} orders are back"

        await self._tell.prove(
            f"all {len(before)} are back, with their content", missing, within=SOON
        )
        await self._tell.prove("the census has them again", self._check.census, within=SOON)

    async def _orders(self, cluster: str) -> dict[str, Any]:
        """The data of each order of a cluster, live."""
        client = self._witness.cluster(cluster)
        listed = await client.list(CONFIGMAPS, NAMESPACE, label_selector=ORDERS)
        return {each["metadata"]["name"]: each["data"] for each in listed}

    async def _run(self, *words: str) -> None:
        stack = self._stage.stack
        access = ("--api-url", stack.api_url, "--kubeconfig", str(stack.kubeconfig))
        process = await asyncio.create_subprocess_exec(
            str(_COMMAND),
            *words,
            *access,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"FLEETBUS_ALLOW_LOOPBACK": "1"},
        )
        printed, _ = await process.communicate()
        if process.returncode:
            raise ClaimError(f"fleetbus {words[0]} ended with {process.returncode}: {printed!r}")


def _rows(entry: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The changes of the image in an entry of a timeline."""
    changes: Sequence[Mapping[str, Any]] = entry.get("differences", ())
    return [
        (entry["time"][11:23], change["path"], str(change["before"]), str(change["after"]))
        for change in changes
        if change["path"].endswith(_IMAGE)
    ]
