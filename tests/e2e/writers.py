"""Somebody who goes on changing the objects of a real cluster."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from support.api.conformance_client import Api

NAMESPACES = ("e2e-0", "e2e-1", "e2e-2")
_NAMES = 12
_PAUSE = 0.05
_LABEL = "e2e.fleetbus.dev/turn"

Json = dict[str, Any]


class Writer:
    """Writes to one cluster until it is stopped; what a broken server refuses is not written.

    Attributes:
        done: how many writes of each kind were answered well.
        refused: how many were not, by status; 0 is no answer at all.
    """

    def __init__(self, api: Api, seed: str) -> None:
        self._api = api
        self._random = random.Random(seed)
        self._turn = 0
        self.done: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()

    def set_up(self) -> None:
        """Make the namespaces."""
        for namespace in NAMESPACES:
            self._api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await asyncio.to_thread(self._write)
            await asyncio.sleep(_PAUSE)

    def _write(self) -> None:
        self._turn += 1
        acts = {
            self._change: 60,
            self._delete: 15,
            self._replace: 10,
            self._make_ready: 10,
            self._delete_some: 1,
        }
        (act,) = self._random.choices(list(acts), weights=list(acts.values()))
        try:
            act()
        except httpx.HTTPError:  # the server is being broken
            self.refused[0] += 1

    def _place(self) -> tuple[str, Json]:
        """Path of a collection, and an object that may be in it."""
        namespace = self._random.choice(NAMESPACES)
        name = f"n{self._random.randrange(_NAMES)}"
        root, body = self._random.choice(_KINDS)
        meta = {"name": name, "labels": {_LABEL: str(self._turn), "app": name}}
        group, _, plural = root.rpartition("/")
        return f"{group}/namespaces/{namespace}/{plural}", {"metadata": meta, **body(name)}

    def _change(self) -> None:
        path, body = self._place()
        name = body["metadata"]["name"]
        if self._send("PATCH", f"{path}/{name}", {"metadata": body["metadata"]}) == 404:
            self._send("POST", path, body)

    def _delete(self) -> None:
        path, body = self._place()
        self._send("DELETE", f"{path}/{body['metadata']['name']}", None)

    def _replace(self) -> None:
        """Another object under the same name, at once."""
        path, body = self._place()
        self._send("DELETE", f"{path}/{body['metadata']['name']}", None)
        self._send("POST", path, body)

    def _make_ready(self) -> None:
        """Set a pod's status to Running and Ready, as a kubelet does."""
        path = f"/api/v1/namespaces/{self._random.choice(NAMESPACES)}/pods"
        reply = self._api.get(path, limit="20")
        if reply.status != 200 or not reply.items:
            return
        name = self._random.choice(reply.items)["metadata"]["name"]
        ready = {"type": "Ready", "status": "True"}
        self._send(
            "PATCH",
            f"{path}/{name}/status",
            {"status": {"phase": "Running", "conditions": [ready]}},
        )

    def _delete_some(self) -> None:
        """A few with one request, by a selector."""
        path, body = self._place()
        chosen = f"app={body['metadata']['name']}"
        self._note("DELETECOLLECTION", self._api.delete(path, labelSelector=chosen).status)

    def _send(self, method: str, path: str, body: Json | None) -> int:
        if method == "PATCH":
            status = self._api.merge(path, body).status
        else:
            status = self._api.call(method, path, body).status
        return self._note(method, status)

    def _note(self, method: str, status: int) -> int:
        if status < 300:
            self.done[method] += 1
        elif status not in (404, 409):  # of such names there are some, and some not
            self.refused[status] += 1
        return status


def _map(name: str) -> Json:
    return {"data": {"k": name, "large": "x" * 2_000}}


def _bare_pod(name: str) -> Json:
    return {"spec": _pod(name)}


def _pod(name: str) -> Json:
    return {"containers": [{"name": "main", "image": "busybox"}], "hostname": name}


def _deployment(name: str) -> Json:
    template = {"metadata": {"labels": {"app": name}}, "spec": _pod(name)}
    selector = {"matchLabels": {"app": name}}
    return {"spec": {"replicas": 1, "selector": selector, "template": template}}


_KINDS: tuple[tuple[str, Callable[[str], Json]], ...] = (
    ("/api/v1/configmaps", _map),
    ("/api/v1/pods", _bare_pod),
    (
        "/api/v1/services",
        lambda name: {"spec": {"selector": {"app": name}, "ports": [{"port": 80}]}},
    ),
    ("/apis/apps/v1/deployments", _deployment),
)


@asynccontextmanager
async def writing(writers: Mapping[str, Writer]) -> AsyncGenerator[None]:
    """Let them write until the block ends."""
    tasks = [asyncio.create_task(w.run(), name=f"writer of {n}") for n, w in writers.items()]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
