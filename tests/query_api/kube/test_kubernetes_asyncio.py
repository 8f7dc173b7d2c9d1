"""kubernetes_asyncio before `/kube/<cluster>`: typed, in pages, dynamic, watching."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PROGRAM = Path(__file__).with_name("asyncio_client.py")


async def test_a5_a_client_lists_and_watches_without_a_gap(api: QueryApi):
    await api.add_cluster("eu1")

    async def add(name: str, number: int) -> None:
        labels = {"even": "no" if number % 2 else "yes"}
        parts: dict[str, Any] = {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "data": {"n": str(number)},
        }
        await api.add("eu1", "core/configmaps", name, labels=labels, **parts)

    for number in range(5):
        await add(f"c{number}", number)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), f"{api.url}/kube/eu1", "prod"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None
    lines: list[str] = []
    while (line := (await program.stdout.readline()).decode().strip()) and line != "watching":
        lines.append(line)
    await add("c2", 7)
    await add("last", 8)
    out, err = await program.communicate()
    assert program.returncode == 0, err.decode()
    assert lines == [
        "listed c0 c1 c2 c3 c4",
        "got V1ConfigMap c1 1",
        "missed 404 Not Found",
        "dynamic c0 c2 c4",
    ]
    assert out.decode().splitlines() == ["MODIFIED c2", "ADDED last"]
