"""Starts the clients of a campaign, and compares their caches with the API servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import yaml

from faults.queries.clients.events import EventClient
from faults.queries.clients.kube import KubeClient
from faults.queries.clients.kubectl import KubectlClient
from faults.queries.clients.programs import ProgramClient, asyncio_client, informer
from faults.queries.clients.recording import ClientRecord
from faults.queries.fleet import QueryFleet
from faults.queries.objects import Objects, key_of, seen_of
from faults.queries.settings import CLIENTS
from support.processes.go_informer import find_go_program
from support.processes.kubectls import kubectls


@dataclass(frozen=True)
class Follower:
    """One client that runs."""

    record: ClientRecord
    body: Coroutine[Any, Any, None]
    program: ProgramClient | None = None

    async def read_cache(self) -> Objects:
        """The cache of the client; of a program, as it says itself.

        Raises:
            TimeoutError: a program does not answer.
        """
        return await self.program.read_cache() if self.program else self.record.cache


@dataclass(frozen=True)
class Programs:
    """The programs of others that clients are; None where there is none."""

    informer: Path | None
    kubectl: Path | None

    @classmethod
    def find(cls, kinds: frozenset[str]) -> Programs:
        """Look for them; an informer is compiled, which takes minutes where it never was.

        Args:
            kinds: of clients that are wanted.
        """
        paths = [*kubectls().values()] if "kubectl" in kinds else []
        return cls(
            find_go_program("events") if "informer" in kinds else None,
            paths[-1] if paths else None,
        )


@asynccontextmanager
async def following(
    fleet: QueryFleet, folder: Path, seed: int, kinds: frozenset[str]
) -> AsyncGenerator[list[Follower]]:
    """Run the clients of these kinds that there are programs for, meanwhile.

    Args:
        fleet: that they watch.
        folder: for their records.
        seed: of their choices.
        kinds: of clients.

    Raises:
        ProgramError: the program of a client ended.
    """
    programs = await asyncio.to_thread(Programs.find, kinds)
    (folder / "clients").mkdir()
    with ExitStack() as files:
        followers = list[Follower]()
        for plan in CLIENTS:
            if plan.kind not in kinds:
                continue
            if (plan.kind == "informer" and not programs.informer) or (
                plan.kind == "kubectl" and not programs.kubectl
            ):
                print(f"  without {plan.name}: there is no program for it here", flush=True)
                continue
            record = ClientRecord(plan, folder / "clients")
            files.callback(record.close)
            followers.append(_follower(fleet, record, programs, seed))
        async with asyncio.TaskGroup() as group:  # one that raises ends the campaign
            tasks = [
                group.create_task(follower.body, name=follower.record.plan.name)
                for follower in followers
            ]
            try:
                yield followers
            finally:
                for task in tasks:
                    task.cancel()


def _follower(fleet: QueryFleet, record: ClientRecord, programs: Programs, seed: int) -> Follower:
    plan, urls = record.plan, fleet.urls
    number = CLIENTS.index(plan)
    urls = urls[number % len(urls) :] + urls[: number % len(urls)]
    random = Random(f"clients/{seed}/{plan.name}")
    program: ProgramClient | None = None
    if plan.kind == "kube":
        return Follower(record, KubeClient(record=record, urls=urls, random=random).run())
    if plan.kind == "events":
        return Follower(record, EventClient(record=record, urls=urls, random=random).run())
    if plan.kind == "kubectl":
        assert programs.kubectl is not None
        kubectl = KubectlClient(
            record=record, binary=programs.kubectl, urls=urls, folder=fleet.folder / "kubectl"
        )
        return Follower(record, kubectl.run())
    if plan.kind == "informer":
        assert programs.informer is not None
        program = informer(record, programs.informer, urls)
    else:
        program = asyncio_client(record, urls)
    return Follower(record, program.run(), program)


# --- what the API servers hold ------------------------------------------------------------------


async def read_clusters(fleet: QueryFleet) -> Objects:
    """The config maps of all clusters, as their API servers list them."""
    kubeconfig = yaml.safe_load((fleet.folder / "kubeconfig").read_text())
    tokens = {user["name"]: user["user"].get("token", "") for user in kubeconfig["users"]}
    users = {
        context["context"]["cluster"]: context["context"]["user"]
        for context in kubeconfig["contexts"]
    }
    objects: Objects = {}
    async with aiohttp.ClientSession() as http:
        for cluster in kubeconfig["clusters"]:
            url = f"{cluster['cluster']['server']}/api/v1/configmaps"
            token = tokens[users[cluster["name"]]]
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with http.get(url, headers=headers) as answer:
                answer.raise_for_status()
                items = orjson.loads(await answer.read())["items"]
            objects |= {key_of(item, cluster["name"]): seen_of(item) for item in items}
    return objects
