"""docs/install.md, followed literally: on real control planes, or on emulated ones.

Helm and kubectl are the real programs, and what they store is run by a kubelet of ours
(`support.kubelet`); all of it in a network of its own. `stand_ins` says what is not real.

    python tests/run.py e2e install                  real control planes
    python tests/run.py e2e.install --emulated       emulated ones; inside of `isolated`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from e2e.audited_rights import KINDS, compare
from e2e.binaries import find_helm, find_programs
from e2e.install_page import INSTALL_PAGE, Step, install_steps
from e2e.planes import ADMIN_TOKEN, Plane
from e2e.stand_ins import write_stand_ins
from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_emulator.controllers import CONTROL_PLANE, simulate
from fleetbus_emulator.scratch import scratch_folder
from support.eventually import eventually
from support.kubelet.images import CHECKOUT
from support.processes.programs import module

NAMES: Final = ("hub", "eu1", "us1")
PODS: Final = ("eu1", "us1")
_STEP: Final = timedelta(minutes=10)
"""Longer than the page lets its own commands wait, each for itself."""
_SOON: Final = timedelta(minutes=1)
_CONTROLLERS: Final = timedelta(seconds=3)
"""By then they have begun to replace pods, if an upgrade wants that."""
_KINDS: Final = ",".join(
    [
        *("pods", "services", "deployments", "statefulsets", "secrets", "configmaps"),
        *("serviceaccounts", "roles", "rolebindings", "networkpolicies", "poddisruptionbudgets"),
        "persistentvolumeclaims",
    ]
)
_LEFT: Final = {
    "pod/fleetbus-test",
    "persistentvolumeclaim/data-fleetbus-nats-0",
    "persistentvolumeclaim/data-fleetbus-valkey-0",
}
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "greeted", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False},
}

Json = dict[str, Any]
Check = Callable[["Installation"], Awaitable[None]]


class StepError(Exception):
    """A command of the page failed, or did not do what the page says."""


@dataclass
class Installation:
    """The clusters, and a shell in which the page is followed.

    Attributes:
        kubeconfigs: of administrators, by cluster.
        output: what the commands of the last step wrote.
        unused: rights that nobody used, by cluster; of real ones.
        stores: UIDs of the pods of NATS and Valkey, by name.
    """

    folder: Path
    kubectl: Path
    kubeconfigs: Mapping[str, Path]
    output: str = ""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    unused: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    stores: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def kubelet(self) -> Path:
        """The folder of the kubelet."""
        return self.folder / "kubelet"

    @property
    def work(self) -> Path:
        """Where the page is followed: like a clone, and files are written to it."""
        return self.folder / "work"

    def environment(self) -> dict[str, str]:
        """Environment of the shell."""
        path = f"{self.folder / 'bin'}:{Path(sys.prefix, 'bin')}:{os.environ['PATH']}"
        home = {"HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfigs["hub"])}
        return {**os.environ, **home, "PATH": path, "COLUMNS": "200"}

    async def take(self, step: Step) -> None:
        """Write a file, or run commands."""
        if step.is_file:
            (self.work / step.name).write_text(step.text)
            return
        began = time.monotonic()
        command = ["bash", "-euxo", "pipefail", "-c", step.text]
        log = self.folder / f"step-{len(self.seconds)}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.work,
                env=self.environment(),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_STEP.total_seconds()):
                await process.wait()
        finally:
            if process.returncode is None:  # helm and kubectl too
                os.killpg(process.pid, signal.SIGKILL)
            self.output = log.read_text(errors="replace")
            self.seconds[step.name] = round(time.monotonic() - began, 1)
            print(f"--- {step.name}: {self.seconds[step.name]} s\n{self.output}", flush=True)
        if process.returncode:
            raise StepError(f"step {step.name!r} of docs/install.md failed:\n{self.output}")

    async def ask(self, cluster: str, *arguments: str, text: str = "") -> str:
        """Run kubectl as an administrator of a cluster.

        In a thread: the emulated API servers are in this process.
        """
        command = [self.kubectl, "--kubeconfig", self.kubeconfigs[cluster], *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self, deployment: str) -> str:
        """The logs of the pods of a Deployment, those that are gone included."""
        logs = sorted(self.kubelet.glob(f"logs/fleetbus/{deployment}-*/*.log"))
        return "".join(path.read_text() for path in logs)


# --- what has to be true after a step -------------------------------------------------------------


async def _stores_run(found: Installation) -> None:
    found.stores = await _stores(found)
    assert len(found.stores) == 2, f"pods of NATS and Valkey: {sorted(found.stores)}"
    # `helm test` asked both pods of each of the five Deployments.
    (log,) = found.kubelet.glob("logs/fleetbus/fleetbus-test/*.log")
    assert log.read_text().count(": ready\n") == 10, log.read_text()


async def _stores(found: Installation) -> dict[str, str]:
    """UIDs of the pods of the StatefulSets, by name."""
    pods = json.loads(await found.ask("hub", "-n", "fleetbus", "get", "pods", "-o", "json"))
    return {
        one["metadata"]["name"]: one["metadata"]["uid"]
        for one in pods["items"]
        if one["metadata"].get("ownerReferences", [{}])[0].get("kind") == "StatefulSet"
    }


async def _pods_are_greeted(found: Installation) -> None:
    """Pods of both clusters reach the controller; each by the watcher that the page gave it.

    A watcher, a controller and a subscriber more are no reason to restart NATS or Valkey.
    """
    stores = await _stores(found)
    assert stores == found.stores, f"NATS or Valkey restarted: {found.stores} became {stores}"
    for cluster in PODS:
        await found.ask(cluster, "create", "-f", "-", text=json.dumps(_POD))
    for cluster in PODS:
        line = f"{cluster} / default / greeted: "
        await eventually(lambda line=line: line in found.log("fleetbus-reconciler-hello"), _SOON)
    watchers = [path.name for path in found.kubelet.glob("logs/fleetbus/fleetbus-watcher-eu1-*")]
    assert len(watchers) >= 2, f"pods of the watcher of eu1: {watchers}"


async def _subscriber_reads_its_subjects(found: Installation) -> None:
    for cluster in PODS:
        await found.ask(cluster, "-n", "default", "create", "configmap", "news")
        line = f"added {cluster} core configmaps default news"
        await eventually(lambda line=line: line in found.log("audit"), _SOON)
    subjects = found.log("audit")
    assert " pods " not in subjects, f"the subscriber reads more than its subjects: {subjects}"


async def _fleet_works_and_an_upgrade_changes_nothing(found: Installation) -> None:
    """The object is placed; passwords, certificates and pods survive the same upgrade again."""
    # The commands are in the output, too, before what they wrote.
    findings = found.output.partition("FINDING")[2]
    assert findings, found.output
    assert "warn " not in findings, findings
    assert "ERROR" not in findings, findings
    for cluster in PODS:
        data = await found.ask(cluster, "get", "configmap", "web", "-o", "jsonpath={.data}")
        assert json.loads(data) == {"greeting": f"hello from {cluster}"}, f"{cluster}: {data}"
    before = await _kept(found)
    again = "helm upgrade fleetbus charts/fleetbus -n fleetbus -f values.yaml"
    await found.take(Step("upgrade again", again, is_file=False))
    await asyncio.sleep(_CONTROLLERS.total_seconds())
    after = await _kept(found)
    changed = sorted(key for key in before | after if before.get(key) != after.get(key))
    assert not changed, f"the same upgrade again changed these UIDs: {changed}"
    await _rights_suffice(found)


async def _rights_suffice(found: Installation) -> None:
    """Nobody asked for what the rendered roles do not give; what they give in vain is reported."""
    for cluster in NAMES:
        log = found.folder / cluster / "audit.log"
        if not log.exists():  # an emulated one
            continue
        roles = json.loads(await found.ask(cluster, "get", KINDS, "-A", "-o", "json"))["items"]
        rights = compare(roles, log)
        found.unused[cluster] = rights.unused
        assert not rights.missing, f"{cluster}: refused for lack of rights: {rights.missing}"


async def _kept(found: Installation) -> Json:
    """UIDs of the pods, and what is in the Secrets."""
    read = ("-n", "fleetbus", "get", "-o", "json")
    pods = json.loads(await found.ask("hub", *read, "pods"))["items"]
    secrets = json.loads(await found.ask("hub", *read, "secrets"))["items"]
    mine = [one for one in secrets if not one["type"].startswith("helm.sh/")]
    return {one["metadata"]["uid"]: one.get("data") for one in (*pods, *mine)}


async def _only_what_the_page_says_is_left(found: Installation) -> None:
    """Disks and a finished pod, and of the fleet nothing on the members."""
    in_release = ("get", _KINDS, "-n", "fleetbus")
    await eventually(lambda: _is_left(found, "hub", in_release, _LEFT), _SOON)
    cluster_wide = ("get", "clusterroles,clusterrolebindings,clusters.fleetbus.dev")
    await eventually(lambda: _is_left(found, "hub", cluster_wide, set()), _SOON)
    secrets = ("get", "secrets", "-n", "fleetbus-clusters")
    await eventually(lambda: _is_left(found, "hub", secrets, set()), _SOON)
    made = ("get", "namespaces,clusterroles,clusterrolebindings")
    for cluster in PODS:
        await eventually(lambda name=cluster: _is_left(found, name, made, set()), _SOON)
        placed = await found.ask(cluster, "get", "configmaps", "-n", "default", "-o", "name")
        assert "configmap/web" not in placed, f"left in {cluster}: {placed}"


async def _is_left(
    found: Installation, cluster: str, get: Sequence[str], expected: AbstractSet[str]
) -> bool:
    """Whether these are the objects with our name."""
    names = (await found.ask(cluster, *get, "-o", "name")).split()
    ours = {name for name in names if "fleetbus" in name or "audit" in name}
    if ours != expected:
        print(f"left on {cluster}: {sorted(ours - expected)}", flush=True)
    return ours == expected


CHECKS: Final[Mapping[str, Check]] = {
    "hub": _stores_run,
    "upgrade": _pods_are_greeted,
    "subscriber": _subscriber_reads_its_subjects,
    "use": _fleet_works_and_an_upgrade_changes_nothing,
    "remove": _only_what_the_page_says_is_left,
}


# --- clusters -------------------------------------------------------------------------------------


@asynccontextmanager
async def real_clusters(folder: Path, programs: Path) -> AsyncGenerator[dict[str, Path]]:
    """Real control planes; the kubeconfigs of their administrators."""
    planes = {
        name: Plane(name, folder / name, programs, host=f"10.1.0.{n}", account_admission=True)
        for n, name in enumerate(NAMES, 1)
    }
    async with AsyncExitStack() as exits:
        for plane in planes.values():
            exits.push_async_callback(plane.aclose)
            await plane.start()
            await plane.start_controllers()
        yield {n: p.write_kubeconfig("admin", token=ADMIN_TOKEN) for n, p in planes.items()}


@asynccontextmanager
async def emulated_clusters(folder: Path) -> AsyncGenerator[dict[str, Path]]:
    """Emulated control planes with access control."""
    admin = User("admin", ("system:masters", "system:authenticated"))
    async with AsyncExitStack() as exits:
        found: dict[str, Path] = {}
        for number, name in enumerate(NAMES, 1):
            cluster = Cluster(name, tokens={ADMIN_TOKEN: admin}, authorize="rbac")
            serving = serve([cluster], host=f"10.1.0.{number}", tls=True)
            servers = await exits.enter_async_context(serving)
            await exits.enter_async_context(simulate([cluster], controllers=CONTROL_PLANE))
            found[name] = folder / f"{name}.kubeconfig"
            servers.write_kubeconfig(found[name], ADMIN_TOKEN)
        yield found


@asynccontextmanager
async def installation(folder: Path, *, emulated: bool) -> AsyncGenerator[Installation]:
    """Clusters, a kubelet on the hub, and a folder like a clone."""
    programs, helm = find_programs(), find_helm(may_build=not emulated)
    clusters = emulated_clusters(folder) if emulated else real_clusters(folder, programs)
    async with clusters as kubeconfigs:
        found = Installation(folder, programs / "kubectl", kubeconfigs)
        write_stand_ins(folder / "bin", found.kubelet, found.kubectl)
        (folder / "bin" / "helm").symlink_to(helm)
        found.work.mkdir()
        for name in ("charts", "examples", "Dockerfile"):
            (found.work / name).symlink_to(CHECKOUT / name)
        for name in PODS:
            (found.work / f"{name}.kubeconfig").symlink_to(kubeconfigs[name])
        found.kubelet.mkdir()
        given = ("--kubeconfig", str(kubeconfigs["hub"]), "--folder", str(found.kubelet))
        command = module("support.kubelet", *given, "--hurry", "5")
        child = Child("kubelet", command, log=folder / "kubelet.log")
        try:
            yield found
        finally:
            await child.stop(patience=timedelta(seconds=20))


async def follow(found: Installation) -> list[str]:
    """Follow docs/install.md; what went wrong."""
    for step in install_steps(INSTALL_PAGE.read_text()):
        try:
            await found.take(step)
            if check := CHECKS.get(step.name):
                await check(found)
        except (StepError, AssertionError, TimeoutError) as e:
            return [f"{step.name}: {e!r}" if isinstance(e, TimeoutError) else f"{step.name}: {e}"]
    return []


async def run(*, emulated: bool, keep: Path | None) -> Json:
    """Follow docs/install.md on clusters of its own."""
    with scratch_folder("install") as folder:
        async with installation(folder, emulated=emulated) as found:
            failures = await follow(found)
        if keep is not None and failures:
            _keep_logs(folder, keep)
        return {"seconds": found.seconds, "unused_rights": found.unused, "failures": failures}


def _keep_logs(folder: Path, keep: Path) -> None:
    for log in (*folder.glob("*.log"), *folder.glob("kubelet/logs/*/*/*.log")):
        place = keep / log.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(log.read_bytes())
    print(f"logs: {keep}")


def main() -> None:
    """The command; exit status 1 if the page did not work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--result", type=Path, help="file for the result, as JSON")
    parser.add_argument("--keep", type=Path, help="folder for the logs of a failure")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        found = asyncio.run(run(emulated=given.emulated, keep=given.keep))
        if given.result is not None:
            given.result.write_text(json.dumps(found))
        print("\n".join(found["failures"]))
        sys.exit(bool(found["failures"]))


if __name__ == "__main__":
    main()
