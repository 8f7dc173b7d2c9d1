"""`kubectl get -w` of the whole fleet, started again whenever it ends, as a person would."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import orjson

from faults.queries.clients.recording import ClientRecord

_AGAIN_SECONDS: Final = 0.5
_LINE_LIMIT: Final = 16 * 1024 * 1024
_WORDS: Final = ("get", "configmaps", "-A", "-w", "--output-watch-events", "-o", "json")


class KubectlClient:
    """Its last printed state of each object is a cache; it begins anew with each process.

    Args:
        record: takes what it prints.
        binary: of kubectl.
        urls: of the query APIs; each process goes to the other one.
        folder: for its files.
    """

    def __init__(
        self, *, record: ClientRecord, binary: Path, urls: Sequence[str], folder: Path
    ) -> None:
        self._record = record
        self._binary = binary
        self._servers = [f"{url}/kube/{record.plan.place}" for url in urls]
        self._folder = folder

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self._follow()
            self._servers.append(self._servers.pop(0))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _follow(self) -> None:
        selector = ["-l", self._record.plan.selector] if self._record.plan.selector else []
        child = await asyncio.create_subprocess_exec(
            *(str(self._binary), "--server", self._servers[0], *_WORDS, *selector),
            # No settings but ours, and what it remembers of an API in a folder of its own.
            env=os.environ | {"HOME": str(self._folder), "KUBECONFIG": os.devnull},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT,
        )
        try:
            await self._read(child)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
        self._record.note("end", why=f"status {child.returncode}")

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        is_open = False
        while line := await child.stdout.readline():
            if not is_open:
                self._record.begin()
                self._record.note("open", version=0)
                is_open = True
            if line.endswith(b"}\n"):  # the last one may be cut
                self._take(orjson.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind, tree = event["type"], event["object"]
        if kind == "ERROR" and tree.get("code") == HTTPStatus.GONE:
            self._record.note("gone")
        elif kind == "ERROR":
            self._record.note("refused", status=tree.get("code"))
        else:
            for item in tree.get("items", [tree]):  # it begins with the pages of its list
                self._record.event(kind, item)
