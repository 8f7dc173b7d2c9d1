"""The parts of `make e2e`, each on control planes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from redis.asyncio import Redis

from e2e.agent_plane import audit_failures, install_account
from e2e.binaries import chosen_release
from e2e.components import services
from e2e.planes import ADMIN_TOKEN, Plane, control_planes, kubeconfig_of
from e2e.rounds import ROUNDS, Round, Scene, play
from e2e.subscriber import subscribed
from e2e.writers import Writer
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_devfleet.processes.children import Child, ChildError
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.kubelet.images import missing_store
from support.kubelet.isolation import isolated, missing
from support.processes.programs import module
from support.servers.real_cluster import AuditLog

ROOT: Final = Path(__file__).parents[2]
_NAMES = ("a", "b", "c", "d", "e")
"""Names of the scenarios: with three clusters a quarter of them has too few."""
_BEHIND = "behind"
"""The cluster of the scenarios that only its agent reaches."""
_NAMES_TOKENS = (1, 30)
"""The release since which the audit log names the token of a request."""
_CAMPAIGN: Final[Mapping[str, timedelta | None]] = {
    "a": None,
    "b": timedelta(seconds=5),
    "c": timedelta(seconds=5),
}
"""Interval of etcd's progress reports; None is its default, ten minutes."""
_WATCHERS: Final = {"a": 2, "b": 1, "c": 1}
_AGENT = "fleetbus-watcher/"
_START = timedelta(seconds=30)
_LOOK = 1.0
_READS = frozenset({"get", "list", "watch"})
_SHOWN = 5

Json = dict[str, Any]


# --- installation ---------------------------------------------------------------------------------


async def run_install(folder: Path) -> Json:
    """docs/install.md, followed literally (`e2e.install`)."""
    if reason := missing() or missing_store():
        return {"skipped": reason, "failures": []}
    log, result = ROOT / "reports/e2e-install.log", folder / "result.json"
    log.unlink(missing_ok=True)
    arguments = ("--result", str(result), "--keep", str(ROOT / "reports/e2e-install"))
    child = Child("install", isolated(*module("e2e.install", *arguments)), log=log)
    try:
        await asyncio.to_thread(child.process.wait)
    finally:
        await child.stop(patience=timedelta(seconds=30))
    if not result.exists():
        return {"failures": [f"it did not run: {log}"]}
    return json.loads(result.read_text())


# --- tests of ours --------------------------------------------------------------------------------


async def run_scenarios(folder: Path, programs: Path, chosen: str) -> Json:
    """The acceptance scenarios and the examples, as they are, against real API servers.

    One more than they have of others is reached by its agent alone.
    """
    async with control_planes(dict.fromkeys((*_NAMES, _BEHIND)), folder, programs) as planes:
        await asyncio.to_thread(install_account, planes[_BEHIND])
        places = ("tests/scenarios", "examples")
        result = await _run_tests("scenarios", folder, planes, chosen, *places)
        names_tokens = chosen_release().minor >= _NAMES_TOKENS
        figures, failures = audit_failures(planes[_BEHIND].audit_log, names_tokens=names_tokens)
    print(f"requests to the cluster behind an agent: {figures}", flush=True)
    if not chosen:  # a choice may have no use for it
        failures += [f"{name}: none" for name, count in figures.items() if not count]
    result["failures"] += [f"the cluster behind an agent: {text}" for text in failures]
    return {**result, "behind_agent": figures}


async def run_conformance(folder: Path, programs: Path, chosen: str) -> Json:
    """The cases by which the emulator is measured: whether they are true of a real cluster."""
    async with control_planes({"a": None}, folder, programs) as planes:
        await planes["a"].start_controllers()
        return await _run_tests("conformance", folder, planes, chosen, "tests/conformance")


async def _run_tests(
    stage: str, folder: Path, planes: Mapping[str, Plane], chosen: str, *places: str
) -> Json:
    """Run tests of ours with these clusters; what pytest says."""
    results = folder / "results.xml"
    log = ROOT / f"reports/e2e-{stage}.log"
    log.unlink(missing_ok=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    document = kubeconfig_of({name: (plane, ADMIN_TOKEN) for name, plane in planes.items()})
    kubeconfig.write_text(yaml.safe_dump(document))
    selection = ["-k", chosen] if chosen else []
    command = [sys.executable, "-m", "pytest", "-q", *places, *selection]
    command += ["--timeout", "180", f"--junitxml={results}"]
    environment = {**os.environ, "FLEETBUS_TEST_KUBECONFIG": str(kubeconfig)}
    tests = Child("pytest", command, log=log, env=environment)
    try:
        await asyncio.to_thread(tests.process.wait)
    finally:
        await tests.stop(patience=timedelta(seconds=30))
    return {"versions": _versions(planes), **_results(results, log)}


def _results(path: Path, log: Path) -> Json:
    """Summarise pytest's JUnit report: passed, skipped by reason, failures."""
    if not path.exists():
        return {"passed": 0, "skipped": {}, "failures": [f"pytest did not run: {log}"]}
    cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314 - pytest has just written it
    passed, skipped, failures = 0, Counter[str](), list[str]()
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        skip = case.find("skipped")
        if skip is not None:
            skipped[skip.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failures.append(f"{name} ({log.relative_to(ROOT)})")
        else:
            passed += 1
    print(f"{passed} passed, {len(failures)} failed, {skipped.total()} skipped:")
    for reason, count in skipped.most_common():
        print(f"  {count} {reason}")
    return {"passed": passed, "skipped": dict(skipped), "failures": failures}


# --- campaign -------------------------------------------------------------------------------------


async def run_campaign(folder: Path, programs: Path, seed: int, chosen: Sequence[str]) -> Json:
    """These rounds in turn; after each everything is compared."""
    async with _scene(folder, programs, seed, _CAMPAIGN) as scene:
        report: Json = {"versions": _versions(scene.planes), "rounds": [], "failures": []}
        audits = {name: AuditLog(plane.audit_log) for name, plane in scene.planes.items()}
        await _note(report, "start", scene, audits, None)
        for name in chosen:
            await _note(report, name, scene, audits, ROUNDS[name])
            if report["failures"]:
                break  # what comes later would be compared with what is wrong already
        report["verbs"] = dict(scene.subscriber.verbs)
        report["writes"] = dict(_sum(writer.done for writer in scene.writers.values()))
        report["refused"] = dict(_sum(writer.refused for writer in scene.writers.values()))
        _keep_logs(report, folder)
    return report


async def _note(
    report: Json, name: str, scene: Scene, audits: Mapping[str, AuditLog], each_round: Round | None
) -> None:
    began = time.monotonic()
    deleted = scene.subscriber.verbs["deleted"]
    try:
        settled = await (scene.settled() if each_round is None else play(scene, each_round))
    except (AssertionError, ChildError) as e:  # it waited in vain, or a process has ended
        report["failures"].append(f"{name}: {e}")
        return
    counts = _asked(audits)
    line: Json = {
        "name": name,
        "seconds": round(time.monotonic() - began, 1),
        "settled_seconds": round(settled.seconds, 1),
        "objects": settled.objects,
        "deleted": scene.subscriber.verbs["deleted"] - deleted,
        **counts,
    }
    report["rounds"].append(line | {"last": settled.last})
    print("  ".join(f"{key} {value}" for key, value in line.items()), flush=True)
    failures = [f"{name}: {text}" for text in settled.differences]
    if wrong := counts.keys() - _READS - {"refused"}:
        failures.append(f"{name}: the watchers asked for {', '.join(sorted(wrong))}")
    report["failures"] += failures


def _asked(audits: Mapping[str, AuditLog]) -> dict[str, int]:
    """Count the watchers' requests for resources since the last call, by verb."""
    counts = Counter[str]()
    for audit in audits.values():
        for request in audit.take():
            if request.user_agent.startswith(_AGENT):
                counts[request.verb] += 1
                counts["refused"] += request.status in (401, 403)
    return dict(counts)


def _versions(planes: Mapping[str, Plane]) -> list[str]:
    return sorted({plane.version() for plane in planes.values()})


def _sum(counters: Any) -> Counter[Any]:
    return sum(counters, start=Counter[Any]())


def _keep_logs(report: Json, folder: Path) -> None:
    """The logs of a campaign that failed."""
    if not report["failures"]:
        return
    folder_kept = ROOT / "reports/e2e-campaign"
    folder_kept.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        (folder_kept / log.name).write_bytes(log.read_bytes())
    print(f"logs: {folder_kept.relative_to(ROOT)}")


@asynccontextmanager
async def _scene(
    folder: Path, programs: Path, seed: int, progress: Mapping[str, timedelta | None]
) -> AsyncGenerator[Scene]:
    """Control planes with controllers, services that watch all of it, and writers."""
    async with AsyncExitStack() as exits:
        enter = exits.enter_async_context
        planes = await enter(control_planes(progress, folder / "planes", programs))
        for plane in planes.values():
            await plane.start_controllers()
        components = await enter(services(planes, folder))
        writers = {name: Writer(api, f"{seed}-{name}") for name, api in components.apis.items()}
        for writer in writers.values():
            await asyncio.to_thread(writer.set_up)
        redis = await enter(Redis.from_url(components.valkey.url))
        components.start_projector()
        # Before the stream is there a subscriber would be taken for who answers in its place.
        await eventually(SnapshotReader(redis, SnapshotKeys()).generation, _START)
        subscriber = await enter(subscribed(components.nats.url))
        components.start_watchers(_WATCHERS)
        yield Scene(planes, components, writers, subscriber, redis, random.Random(seed))


# --- quiet ----------------------------------------------------------------------------------------


async def run_quiet(folder: Path, programs: Path, length: timedelta) -> Json:
    """Nobody writes, etcd says where it is every ten minutes, and nothing is shown failing."""
    async with _scene(folder, programs, 0, dict.fromkeys(_CAMPAIGN)) as scene:
        settled = await scene.settled()
        failures = [f"start: {text}" for text in settled.differences]
        audits = {name: AuditLog(plane.audit_log) for name, plane in scene.planes.items()}
        failing = await _look(scene, length)
        counts = _asked(audits)
        failures += [
            f"{where} is shown as {reason!r}, first after {first:.0f} s"
            for (where, reason), first in list(failing.items())[:_SHOWN]
        ]
        failures += [f"end: {text}" for text in (await scene.settled()).differences]
        versions = _versions(scene.planes)
    print(f"shown failing: {len(failing)} resources; asked meanwhile: {counts}", flush=True)
    figures = {"minutes": length.total_seconds() / 60, "objects": settled.objects, "asked": counts}
    return {"versions": versions, **figures, "shown_failing": len(failing), "failures": failures}


async def _look(scene: Scene, length: timedelta) -> dict[tuple[str, str], float]:
    """Return the resources that were not shown as complete, why, and after how many seconds."""
    reader = SnapshotReader(scene.redis, SnapshotKeys())
    failing: dict[tuple[str, str], float] = {}
    began = time.monotonic()
    while (passed := time.monotonic() - began) < length.total_seconds():
        for cluster in scene.planes:
            for record in await reader.resources(cluster):
                fresh = (await reader.freshness([cluster], record.key))[cluster]
                if not fresh.is_complete:
                    failing.setdefault((f"{cluster} {record.key}", fresh.reason), passed)
        await asyncio.sleep(_LOOK)
    return failing
