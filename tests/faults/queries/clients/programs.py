"""Clients that are programs of their own: client-go's informers, and kubernetes_asyncio.

They print what happens to them as lines of JSON, and their cache for each line of their input.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from faults.queries.clients.recording import ClientRecord
from faults.queries.objects import Objects
from support.processes.programs import module

_LINE_LIMIT: Final = 256 * 1024 * 1024
_ANSWER_SECONDS: Final = 30.0


class ProgramError(Exception):
    """The program of a client ended."""


class ProgramClient:
    """Runs a program, and takes what it prints.

    Args:
        record: takes what it gets.
        command: of the program.
        env: added to the environment.
    """

    def __init__(
        self, *, record: ClientRecord, command: Sequence[str], env: dict[str, str] | None = None
    ) -> None:
        self._record = record
        self._command = command
        self._env = env or {}
        self._child: asyncio.subprocess.Process | None = None
        self._answer: asyncio.Future[Objects] | None = None

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            ProgramError: it ended.
        """
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command,
            env=os.environ | self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT,
        )
        assert child.stdout is not None
        try:
            while line := await child.stdout.readline():
                self._take(orjson.loads(line))
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
        raise ProgramError(f"{self._record.plan.name} ended with status {child.returncode}")

    async def read_cache(self) -> Objects:
        """Its own cache.

        Raises:
            TimeoutError: it does not answer.
        """
        assert self._child is not None
        assert self._child.stdin is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._child.stdin.write(b"\n")
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await self._answer

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.pop("kind")
        if kind == "cache":
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(self._record.seen(line.get("objects") or []))
        elif kind == "event":
            self._record.event(line["type"], line["object"])
        elif kind == "list" and "objects" in line:
            self._record.listed(line["objects"], int(line["version"]))
        elif kind in ("open", "bookmark"):
            self._record.note(kind, version=int(line.get("version") or 0))
        else:
            self._record.note(kind, **line)


def informer(record: ClientRecord, program: Path, urls: Sequence[str]) -> ProgramClient:
    """An informer of client-go at the first query API that takes its connection."""
    plan = record.plan
    others = [url.partition("//")[2] for url in urls[1:]]
    return ProgramClient(
        record=record,
        command=[str(program), f"{urls[0]}/kube/{plan.place}", plan.selector, *others],
        env={"KUBE_FEATURE_WatchListClient": "false" if plan.lists else "true"},
    )


def asyncio_client(record: ClientRecord, urls: Sequence[str]) -> ProgramClient:
    """A program of kubernetes_asyncio that goes to the other query API after each end."""
    plan = record.plan
    places = [f"{url}/kube/{plan.place}" for url in urls]
    name = "faults.queries.clients.asyncio_program"
    return ProgramClient(record=record, command=module(name, plan.selector, *places))
