"""Reads the probes and metrics of a process, whose port is in a file."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from support.eventually import eventually


async def read_probe(port_file: Path, path: str) -> tuple[int, str]:
    """The status and the text of `/healthz`, `/readyz` or `/metrics`."""
    port = await eventually(lambda: port_file.exists() and port_file.read_text().strip())
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()
