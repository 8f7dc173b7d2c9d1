"""docs/install.md, and `ha` turned on later, followed literally, on real or emulated clusters.

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

from e2e import agent_member
from e2e.audited_rights import KINDS, compare
from e2e.binaries import find_helm, find_programs
from e2e.install_page import Step, all_steps
from e2e.planes import ADMIN_TOKEN, Plane
from e2e.stand_ins import write_stand_ins
from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_emulator.controllers import CONTROL_PLANE, simulate
from fleetbus_emulator.scratch import scratch_folder
from support.eventually import eventually
from support.kubelet.images import CHECKOUT
from support.processes.programs import module

PODS: Final = ("eu1", "us1")
"""The members that the hub reaches."""
NAMES: Final = ("hub", *PODS, agent_member.CLUSTER)
HOSTS: Final = {name: f"10.1.0.{number}" for number, name in enumerate(NAMES, 1)}
"""Addresses of the API servers."""
_STEP: Final = timedelta(minutes=10)
"""Longer than the page lets its own commands wait, each for itself."""
_SOON: Final = timedelta(minutes=4)
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
    *(
        f"persistentvolumeclaim/data-fleetbus-{store}-{number}"
        for store in ("nats", "valkey")
        for number in range(3)
    ),
}
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False},
}
_WAIT_AND_TEST: Final = """
for kind in statefulset deployment; do
  kubectl -n fleetbus rollout status $kind -l app.kubernetes.io/instance=fleetbus --timeout 5m
done
helm -n fleetbus test fleetbus
"""

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
    def member_kubelet(self) -> Path:
        """The folder of the kubelet of the member with an agent."""
        return self.folder / "kubelet-of-member"

    @property
    def names(self) -> Path:
        """Lines of hosts files: names that pods of that member resolve."""
        return self.folder / "names"

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
            raise StepError(f"step {step.name!r} failed:\n{self.output}")

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

    async def create_pod(self, cluster: str, name: str) -> None:
        """Create a pod that the controller of the page greets."""
        pod = {**_POD, "metadata": {"name": name, "namespace": "default"}}
        await self.ask(cluster, "create", "-f", "-", text=json.dumps(pod))

    def log(self, deployment: str) -> str:
        """The logs of the pods of a Deployment, those that are gone included."""
        logs = sorted(self.kubelet.glob(f"logs/fleetbus/{deployment}-*/*.log"))
        return "".join(path.read_text() for path in logs)


# --- what has to be true after a step -------------------------------------------------------------


async def _stores_run(installed: Installation) -> None:
    installed.stores = await _stores(installed)
    assert len(installed.stores) == 2, f"pods of NATS and Valkey: {sorted(installed.stores)}"
    # `helm test` asked both pods of each of the five Deployments.
    (log,) = installed.kubelet.glob("logs/fleetbus/fleetbus-test/*.log")
    assert log.read_text().count(": ready\n") == 10, log.read_text()


async def _stores(installed: Installation) -> dict[str, str]:
    """UIDs of the pods of the StatefulSets, by name."""
    pods = json.loads(await installed.ask("hub", "-n", "fleetbus", "get", "pods", "-o", "json"))
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in pods["items"]
        if pod["metadata"].get("ownerReferences", [{}])[0].get("kind") == "StatefulSet"
    }


async def _pods_are_greeted(installed: Installation) -> None:
    """Pods of both clusters reach the controller; each by the watcher that the page gave it.

    A watcher, a controller and a subscriber more are no reason to restart NATS or Valkey.
    """
    stores = await _stores(installed)
    assert stores == installed.stores, (
        f"NATS or Valkey restarted: {installed.stores} became {stores}"
    )
    for cluster in PODS:
        await installed.create_pod(cluster, "greeted")
    for cluster in PODS:
        line = f"{cluster} / default / greeted: "
        await eventually(
            lambda line=line: line in installed.log("fleetbus-reconciler-hello"), _SOON
        )
    watchers = [
        path.name for path in installed.kubelet.glob("logs/fleetbus/fleetbus-watcher-eu1-*")
    ]
    assert len(watchers) >= 2, f"pods of the watcher of eu1: {watchers}"


async def _subscriber_reads_its_subjects(installed: Installation) -> None:
    for cluster in PODS:
        await installed.ask(cluster, "-n", "default", "create", "configmap", "news")
        line = f"added {cluster} core configmaps default news"
        await eventually(lambda line=line: line in installed.log("audit"), _SOON)
    subjects = installed.log("audit")
    assert " pods " not in subjects, f"the subscriber reads more than its subjects: {subjects}"


async def _fleet_works_and_an_upgrade_changes_nothing(installed: Installation) -> None:
    """The object is placed; passwords, certificates and pods survive the same upgrade again."""
    # The commands are in the output, too, before what they wrote.
    findings = installed.output.partition("FINDING")[2]
    assert findings, installed.output
    assert "warn " not in findings, findings
    assert "ERROR" not in findings, findings
    for cluster in (*PODS, agent_member.CLUSTER):
        data = await installed.ask(cluster, "get", "configmap", "web", "-o", "jsonpath={.data}")
        assert json.loads(data) == {"greeting": f"hello from {cluster}"}, f"{cluster}: {data}"
    before = await _kept(installed)
    again = "helm upgrade fleetbus charts/fleetbus -n fleetbus -f values.yaml -f agents.yaml"
    await installed.take(Step("upgrade again", again, is_file=False))
    await asyncio.sleep(_CONTROLLERS.total_seconds())
    after = await _kept(installed)
    changed = sorted(key for key in before | after if before.get(key) != after.get(key))
    assert not changed, f"the same upgrade again changed these UIDs: {changed}"
    await _rights_suffice(installed)
    await agent_member.is_written_to_by_its_agent(installed)
    with_ha = "helm -n fleetbus get values fleetbus -o yaml > my.yaml; echo 'ha: true' >> my.yaml"
    await installed.take(Step("values", with_ha, is_file=False))


async def _three_servers_serve_the_fleet(installed: Installation) -> None:
    """All of NATS and Valkey run, and whatever the page built before goes on."""
    expected = {f"fleetbus-{store}-{number}" for store in ("nats", "valkey") for number in range(3)}
    await eventually(lambda: _are_stores(installed, expected), _SOON)
    await installed.take(Step("test", _WAIT_AND_TEST, is_file=False))
    edit = {"spec": {"template": {"data": {"greeting": "${cluster.name} again"}}}}
    patch = ("--type", "merge", "--patch", json.dumps(edit))
    await installed.ask("hub", "-n", "default", "patch", "multiclusterresource", "web", *patch)
    for cluster in PODS:
        await installed.ask(cluster, "-n", "default", "create", "configmap", "after")
        await installed.create_pod(cluster, "after")
    for cluster in PODS:
        event = f"added {cluster} core configmaps default after"
        await eventually(lambda event=event: event in installed.log("audit"), _SOON)
        line = f"{cluster} / default / after: "
        await eventually(
            lambda line=line: line in installed.log("fleetbus-reconciler-hello"), _SOON
        )
    for cluster in (*PODS, agent_member.CLUSTER):
        await eventually(lambda name=cluster: _is_edited(installed, name), _SOON)


async def _are_stores(installed: Installation, names: AbstractSet[str]) -> bool:
    return (await _stores(installed)).keys() == names


async def _is_edited(installed: Installation, cluster: str) -> bool:
    data = await installed.ask(cluster, "get", "configmap", "web", "-o", "jsonpath={.data}")
    return json.loads(data) == {"greeting": f"{cluster} again"}


async def _rights_suffice(installed: Installation) -> None:
    """Nobody asked for what the rendered roles do not give; what they give in vain is reported."""
    for cluster in ("hub", *PODS):
        log = installed.folder / cluster / "audit.log"
        if not log.exists():  # an emulated one
            continue
        roles = json.loads(await installed.ask(cluster, "get", KINDS, "-A", "-o", "json"))["items"]
        rights = compare(roles, log)
        installed.unused[cluster] = rights.unused
        assert not rights.missing, f"{cluster}: refused for lack of rights: {rights.missing}"


async def _kept(installed: Installation) -> Json:
    """UIDs of the pods, and what is in the Secrets."""
    read = ("-n", "fleetbus", "get", "-o", "json")
    pods = json.loads(await installed.ask("hub", *read, "pods"))["items"]
    secrets = json.loads(await installed.ask("hub", *read, "secrets"))["items"]
    mine = [secret for secret in secrets if not secret["type"].startswith("helm.sh/")]
    return {obj["metadata"]["uid"]: obj.get("data") for obj in (*pods, *mine)}


async def _only_what_the_page_says_is_left(installed: Installation) -> None:
    """Disks and a finished pod, and of the fleet nothing on the members."""
    in_release = ("get", _KINDS, "-n", "fleetbus")
    await eventually(lambda: _is_left(installed, "hub", in_release, _LEFT), _SOON)
    cluster_wide = ("get", "clusterroles,clusterrolebindings,clusters.fleetbus.dev")
    await eventually(lambda: _is_left(installed, "hub", cluster_wide, set()), _SOON)
    secrets = ("get", "secrets", "-n", "fleetbus-clusters")
    await eventually(lambda: _is_left(installed, "hub", secrets, set()), _SOON)
    command = ("get", "namespaces,clusterroles,clusterrolebindings,roles,rolebindings", "-A")
    for cluster in (*PODS, agent_member.CLUSTER):
        await eventually(lambda name=cluster: _is_left(installed, name, command, set()), _SOON)
        placed = await installed.ask(cluster, "get", "configmaps", "-n", "default", "-o", "name")
        assert "configmap/web" not in placed, f"left in {cluster}: {placed}"


async def _is_left(
    installed: Installation, cluster: str, get: Sequence[str], expected: AbstractSet[str]
) -> bool:
    """Whether these are the objects with our name."""
    names = (await installed.ask(cluster, *get, "-o", "name")).split()
    names_left = {name for name in names if "fleetbus" in name or "audit" in name}
    if names_left != expected:
        print(f"left on {cluster}: {sorted(names_left - expected)}", flush=True)
    return names_left == expected


CHECKS: Final[Mapping[str, Check]] = {
    "hub": _stores_run,
    "upgrade": _pods_are_greeted,
    "subscriber": _subscriber_reads_its_subjects,
    "agents": agent_member.name_nats,
    "agent": agent_member.is_behind_its_agent,
    "use": _fleet_works_and_an_upgrade_changes_nothing,
    "high availability": _three_servers_serve_the_fleet,
    "remove": _only_what_the_page_says_is_left,
}


# --- clusters -------------------------------------------------------------------------------------


@asynccontextmanager
async def real_clusters(folder: Path, programs: Path) -> AsyncGenerator[dict[str, Path]]:
    """Real control planes; the kubeconfigs of their administrators."""
    planes = {
        name: Plane(name, folder / name, programs, host=host, account_admission=True)
        for name, host in HOSTS.items()
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
        kubeconfigs: dict[str, Path] = {}
        for name, host in HOSTS.items():
            cluster = Cluster(name, tokens={ADMIN_TOKEN: admin}, authorize="rbac")
            serving = serve([cluster], host=host, tls=True)
            servers = await exits.enter_async_context(serving)
            await exits.enter_async_context(simulate([cluster], controllers=CONTROL_PLANE))
            kubeconfigs[name] = folder / f"{name}.kubeconfig"
            servers.write_kubeconfig(kubeconfigs[name], ADMIN_TOKEN)
        yield kubeconfigs


@asynccontextmanager
async def installation(folder: Path, *, emulated: bool) -> AsyncGenerator[Installation]:
    """Clusters, a kubelet on the hub, and a folder like a clone."""
    programs, helm = find_programs(), find_helm(may_build=not emulated)
    clusters = emulated_clusters(folder) if emulated else real_clusters(folder, programs)
    async with clusters as kubeconfigs:
        opened = Installation(folder, programs / "kubectl", kubeconfigs)
        write_stand_ins(folder / "bin", opened.kubelet, opened.kubectl)
        (folder / "bin" / "helm").symlink_to(helm)
        opened.work.mkdir()
        for name in ("charts", "examples", "Dockerfile"):
            (opened.work / name).symlink_to(CHECKOUT / name)
        for name in NAMES[1:]:
            (opened.work / f"{name}.kubeconfig").symlink_to(kubeconfigs[name])
        kubelets = _start_kubelets(opened)
        try:
            yield opened
        finally:
            for child in kubelets:
                child.terminate()
            for child in kubelets:
                await child.stop(patience=timedelta(seconds=20))


def _start_kubelets(opened: Installation) -> list[Child]:
    """One for the hub and one for the member with an agent; neither has a route to the other."""
    opened.kubelet.mkdir()
    opened.member_kubelet.mkdir()
    opened.names.touch()
    # One registry for both.
    (opened.member_kubelet / "images.json").symlink_to(opened.kubelet / "images.json")
    others = [host for name, host in HOSTS.items() if name != agent_member.CLUSTER]
    return [
        _start_kubelet(opened, "hub", opened.kubelet, [HOSTS[agent_member.CLUSTER]]),
        _start_kubelet(
            opened,
            agent_member.CLUSTER,
            opened.member_kubelet,
            others,
            *("--first", agent_member.FIRST_POD, "--names", str(opened.names)),
        ),
    ]


def _start_kubelet(
    opened: Installation, cluster: str, folder: Path, unreachable: Sequence[str], *more: str
) -> Child:
    arguments = ["--kubeconfig", str(opened.kubeconfigs[cluster]), "--folder", str(folder), *more]
    for host in unreachable:
        arguments += ["--unreachable", host]
    command = module("support.kubelet", *arguments, "--hurry", "5")
    return Child(f"kubelet of {cluster}", command, log=opened.folder / f"{folder.name}.log")


async def follow(installed: Installation) -> list[str]:
    """Follow both pages; what went wrong."""
    for step in all_steps():
        try:
            await installed.take(step)
            if check := CHECKS.get(step.name):
                await check(installed)
        except (StepError, AssertionError, TimeoutError) as e:
            return [f"{step.name}: {e!r}" if isinstance(e, TimeoutError) else f"{step.name}: {e}"]
    return []


async def run(*, emulated: bool, keep: Path | None) -> Json:
    """Follow docs/install.md on clusters of its own."""
    with scratch_folder("install") as folder:
        async with installation(folder, emulated=emulated) as installed:
            failures = await follow(installed)
        if keep is not None and failures:
            _keep_logs(folder, keep)
        return {
            "seconds": installed.seconds,
            "unused_rights": installed.unused,
            "failures": failures,
        }


def _keep_logs(folder: Path, keep: Path) -> None:
    for log in (*folder.glob("*.log"), *folder.glob("kubelet*/logs/*/*/*.log")):
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
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        result = asyncio.run(run(emulated=args.emulated, keep=args.keep))
        if args.result is not None:
            args.result.write_text(json.dumps(result))
        print("\n".join(result["failures"]))
        sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
