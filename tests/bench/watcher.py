"""One watcher's throughput and memory, beside its floor and kubernetes_asyncio in the same run.

    python tests/run.py bench.watcher [--json]

A server process sends the same canned pod events to each contender in turn; each contender is a
process of its own. The floor reads, splits, cuts, packs and publishes, and does nothing else.
CPU is that of the contender alone; NATS and the server take their share of the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import yaml
from aiohttp import web
from eventually import eventually

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream, stream_info
from fleetbus.bus.window import Ack, open_window
from fleetbus.process.logs import set_up_logs
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto import codec
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

EVENTS = 40_000
TYPED_EVENTS = 4_000
# Without a projector there is nobody to ask for a grant.
ALONE = {"FLEETBUS_WATCHER_RESOURCES": '["pods"]', "FLEETBUS_WATCHER_GRANT_PATIENCE": "0s"}
SMALL, LARGE = 1_000, 100_000
PAGE = 500
ROUNDS = 3
_HOST = "127.0.0.1"


def _container(name: str) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    return {
        "name": name,
        "image": f"registry.example.com/team/{name}:1.2.3",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{n}", "value": "some value"} for n in range(8)],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(3)],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True},
    }


def _template() -> bytes:
    """About 5.7 KB, as an API server sends it, managedFields and all."""
    fields: dict[str, Any] = {f"f:field-{n}": {".": {}, "f:name": {}} for n in range(55)}
    managed = {"manager": "kubelet", "operation": "Update", "fieldsV1": fields}
    names = ("main", "sidecar")
    spec: dict[str, Any] = {
        "containers": [_container(name) for name in names],
        "nodeName": "node-7",
        "tolerations": [{"key": f"key-{n}", "operator": "Exists"} for n in range(3)],
        "volumes": [{"name": f"volume-{n}", "emptyDir": {}} for n in range(3)],
    }
    status: dict[str, Any] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": name,
                "ready": True,
                "restartCount": 0,
                "image": "i",
                "imageID": "sha256:0",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for name in names
        ],
    }
    metadata: dict[str, Any] = {
        "name": "NAME",
        "namespace": "ns",
        "uid": "UID",
        "resourceVersion": "VERSION",
        "labels": {"app": "app"},
        "annotations": {"example.com/note": "x" * 200},
        "managedFields": [managed],
    }
    pod: dict[str, Any] = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }
    return json.dumps(pod, separators=(",", ":")).encode()


_HEAD, _UID_AND_REST = _template().split(b"NAME")
_TO_UID, _VERSION_AND_REST = _UID_AND_REST.split(b"UID")
_TO_VERSION, _TAIL = _VERSION_AND_REST.split(b"VERSION")


def pod(index: int, version: int) -> bytes:
    """One pod; its uid follows from the index."""
    parts = (_HEAD, b"pod-%d" % index, _TO_UID, b"uid-%d" % index, _TO_VERSION, b"%d" % version)
    return b"".join((*parts, _TAIL))


# --- the server -------------------------------------------------------------------------------


class Server:
    """An API server that has pods, sends canned events, and then is silent."""

    def __init__(self, objects: int, events: int) -> None:
        self._objects = objects
        lines = [
            b'{"type":"MODIFIED","object":' + pod(index % 500, 10**9 + index) + b"}\n"
            for index in range(events)
        ]
        self._chunks = [b"".join(lines[at : at + 50]) for at in range(0, events, 50)]
        self._asked = {"lists": 0, "probes": 0, "watches": 0}

    async def run(self, port_file: Path) -> None:
        runner = web.ServerRunner(web.Server(self._answer), handle_signals=True)
        await runner.setup()
        await web.TCPSite(runner, _HOST, 0).start()
        port_file.write_text(str(runner.addresses[0][1]))
        await asyncio.Event().wait()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        query = request.query
        if request.path == "/asked":
            return web.json_response(self._asked)
        if request.path == "/api/v1/pods" and "watch" in query:
            self._asked["watches"] += 1
            return await self._watch(request)
        if request.path == "/api/v1/pods":
            limit, start = int(query.get("limit") or PAGE), int(query.get("continue") or 0)
            self._note_list(limit)
            return web.Response(body=self._list(start, limit))
        return web.json_response(_DOCUMENTS[request.path])

    def _note_list(self, limit: int) -> None:
        self._asked["lists" if limit > 1 else "probes"] += 1

    def _list(self, start: int, limit: int) -> bytes:
        end = min(start + limit, self._objects)
        token = str(end) if end < self._objects else ""
        metadata = {"resourceVersion": str(10**9), "continue": token}
        head = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata}
        items = [pod(index, index + 1).partition(b'"v1",')[2] for index in range(start, end)]
        opened = b",".join(b"{" + item for item in items)
        return json.dumps(head).encode()[:-1] + b',"items":[' + opened + b"]}"

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in self._chunks:
            await response.write(chunk)
        await asyncio.Event().wait()
        return response


_DOCUMENTS: dict[str, Any] = {
    "/version": {"gitVersion": "v1.33.0"},
    "/api/v1/namespaces/kube-system": {"metadata": {"name": "kube-system", "uid": "u"}},
    "/apis": {"groups": []},
    "/api/v1": {
        "resources": [
            {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["get", "list", "watch"]}
        ]
    },
}


# --- the contenders ---------------------------------------------------------------------------


class _Line(msgspec.Struct):
    type: str
    object: dict[str, msgspec.Raw]


async def run_floor(url: str, nats_url: str) -> None:
    """Read, split, cut, pack, publish."""
    line_decoder = msgspec.json.Decoder(_Line)
    map_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    text_decoder = msgspec.json.Decoder(str)
    encoder = msgspec.json.Encoder()
    incarnation, rank = Incarnation(1, "u"), Rank("1", 1)

    def settle(_: Ack) -> None:
        pass

    async with (
        connected(nats_url, name="floor") as bus,
        open_window(bus) as window,
        aiohttp.ClientSession(read_bufsize=2**21) as session,
        session.get(url + "/api/v1/pods?watch=true", timeout=aiohttp.ClientTimeout()) as answer,
    ):
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                found = line_decoder.decode(line)
                obj = found.object
                metadata = map_decoder.decode(obj["metadata"])
                metadata.pop("managedFields", None)
                obj["metadata"] = msgspec.Raw(encoder.encode(metadata))
                name = text_decoder.decode(metadata["name"])
                uid = text_decoder.decode(metadata["uid"])
                version = text_decoder.decode(metadata["resourceVersion"])
                event = Event(
                    cluster="eu1",
                    incarnation=incarnation,
                    group="core",
                    version="v1",
                    resource="pods",
                    kind="Pod",
                    namespace="n",
                    name=name,
                    uid=uid,
                    resource_version=version,
                    verb=Verb.MODIFIED,
                    epoch=rank,
                    observed_at="2026-01-01T00:00:00.000000Z",
                    object=encoder.encode(obj),
                )
                await window.publish(
                    f"fleetbus.events.eu1.core.pods.n.{name}.modified",
                    codec.encode(event),
                    {"Nats-Msg-Id": f"{uid}:{version}"},
                    settle,
                )


async def run_typed(kubeconfig: str, events: int) -> None:
    """kubernetes_asyncio's Watch with typed models; it only reads."""
    from kubernetes_asyncio import client as kube_client  # noqa: PLC0415
    from kubernetes_asyncio import config, watch  # noqa: PLC0415

    client: Any = kube_client

    await config.load_kube_config(kubeconfig)
    started, seen = time.process_time(), 0
    async with client.ApiClient() as api, watch.Watch() as watcher:
        pods = client.CoreV1Api(api).list_pod_for_all_namespaces
        async for _ in watcher.stream(pods, resource_version="1"):
            seen += 1
            if seen == 100:
                started = time.process_time()
            if seen == events:
                break
    print((time.process_time() - started) / (events - 100) * 1e6)


# --- the measurement --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    contender: str
    per_second: int
    cpu_us: float


@asynccontextmanager
async def process(*command: str, **environment: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env=os.environ | environment,
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


@asynccontextmanager
async def server(folder: Path, objects: int, events: int) -> AsyncGenerator[str]:
    """A server process; yields its URL."""
    port_file = folder / f"port-{time.monotonic_ns()}"
    role = ("--role", "server", "--objects", str(objects), "--events", str(events))
    async with process(__file__, *role, "--file", str(port_file)):
        port = await eventually(
            lambda: port_file.exists() and port_file.read_text(), timedelta(seconds=30)
        )
        yield f"http://{_HOST}:{port}"


def write_kubeconfig(folder: Path, url: str) -> Path:
    document: dict[str, Any] = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": url}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def watcher_command(kubeconfig: Path, replica: str = "r1") -> tuple[str, ...]:
    code = "import sys; from fleetbus_watcher.main import main; main(sys.argv[1:])"
    return ("-c", code, "--cluster", "eu1", "--replica", replica, "--kubeconfig", str(kubeconfig))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def stored(nats_url: str, at_least: int, pid: int) -> tuple[float, float]:
    """Wait until so many messages are stored; seconds and CPU from the first tenth on."""
    async with connected(nats_url, name="count") as bus:
        begun: tuple[float, float, int] | None = None
        while True:
            info = await stream_info(bus)
            count = info["state"]["messages"] if info else 0
            if begun is None and count > at_least / 10:
                begun = (time.perf_counter(), cpu_seconds(pid), count)
            if begun is not None and count >= at_least:
                share = (count - begun[2]) / at_least
                seconds = (time.perf_counter() - begun[0]) / share
                return seconds, (cpu_seconds(pid) - begun[1]) / share
            await asyncio.sleep(0.02)


@asynccontextmanager
async def nats_with_stream(
    folder: Path, *, sync_always: bool = False
) -> AsyncGenerator[NatsServer]:
    store = folder / f"nats-{time.monotonic_ns()}"
    async with (
        nats_server(store_dir=store, sync_always=sync_always) as nats,
        connected(nats.url, name="own") as owner,
    ):
        await ensure_stream(owner)
        await ensure_bucket(owner)
        yield nats


@asynccontextmanager
async def bus(folder: Path, *, sync_always: bool = False) -> AsyncGenerator[str]:
    async with nats_with_stream(folder, sync_always=sync_always) as nats:
        yield nats.url


async def measure(folder: Path, contender: str) -> Figure:
    async with server(folder, 0, EVENTS) as url, bus(folder) as nats_url:
        command: tuple[str, ...]
        if contender == "floor":
            command = (__file__, "--role", "floor", "--url", url, "--nats", nats_url)
        else:
            command = watcher_command(write_kubeconfig(folder, url))
        environment = {"FLEETBUS_NATS_URL": nats_url, **ALONE}
        async with process(*command, **environment) as child:
            seconds, cpu = await stored(nats_url, EVENTS, child.pid)
    return Figure(contender, round(EVENTS / seconds), round(cpu / EVENTS * 1e6, 1))


async def measure_typed(folder: Path) -> Figure:
    async with server(folder, 0, TYPED_EVENTS) as url:
        kubeconfig = write_kubeconfig(folder, url)
        role = ("--role", "typed", "--file", str(kubeconfig), "--events", str(TYPED_EVENTS))
        async with process(__file__, *role) as child:
            out, _ = await child.communicate()
    cpu_us = float(out)
    return Figure("kubernetes_asyncio, typed, only reads", round(1e6 / cpu_us), round(cpu_us, 1))


async def measure_memory(folder: Path, objects: int) -> float:
    """RSS of a watcher after it listed so many objects."""
    async with server(folder, objects, 0) as url, bus(folder) as nats_url:
        environment = {"FLEETBUS_NATS_URL": nats_url, **ALONE}
        command = watcher_command(write_kubeconfig(folder, url))
        async with process(*command, **environment) as child:
            await stored(nats_url, objects, child.pid)
            await asyncio.sleep(1)
            return rss_mb(child.pid)


async def main(*, as_json: bool) -> None:
    set_up_logs("text", "warning")  # the report is what goes to stdout
    with scratch_folder("bench-watcher") as folder:
        figures: list[Figure] = []
        for contender in ("floor", "watcher"):
            runs = [await measure(folder, contender) for _ in range(ROUNDS)]
            figures.append(min(runs, key=lambda figure: figure.cpu_us))
        figures.append(await measure_typed(folder))
        small, large = [await measure_memory(folder, count) for count in (SMALL, LARGE)]
    floor, ours, typed = figures
    summary = {
        "of_the_floor": round(ours.per_second / floor.per_second, 2),
        "times_typed_watch": round(typed.cpu_us / ours.cpu_us, 1),
        "rss_mb": {SMALL: round(small, 1), LARGE: round(large, 1)},
        "rss_growth_mb": round(large - small, 1),
    }
    print(f"{'contender':40}{'events/s':>10}{'CPU us/event':>15}")
    for figure in figures:
        print(f"{figure.contender:40}{figure.per_second:>10,}{figure.cpu_us:>15}")
    for name, value in summary.items():
        print(f"{name:40}{value!s:>25}")
    if as_json:
        figured = [{name: getattr(f, name) for name in Figure.__slots__} for f in figures]
        print(json.dumps({"figures": figured, **summary}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    for hidden in ("--url", "--nats", "--file"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    for hidden in ("--objects", "--events"):
        parser.add_argument(hidden, type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    roles = {
        "server": lambda: Server(given.objects, given.events).run(Path(given.file)),
        "floor": lambda: run_floor(given.url, given.nats),
        "typed": lambda: run_typed(given.file, given.events),
        "": lambda: main(as_json=given.json),
    }
    asyncio.run(roles[given.role]())
