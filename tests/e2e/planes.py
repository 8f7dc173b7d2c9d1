"""Real control planes on loopback: etcd, kube-apiserver and, if wanted, kube-controller-manager.

No nodes and no kubelets: pods stay Pending unless somebody writes their status. Admission of
ServiceAccounts is off unless asked for, authorization is RBAC, all but etcd speaks TLS, which has a
port of loopback for itself. Each API server keeps an audit log of what clients asked.

    python tests/run.py e2e.planes        three of them, until Ctrl-C; prints a kubeconfig
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import trustme
import yaml

from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.ports import LOOPBACK, HeldPort

ADMIN_TOKEN = "e2e-admin"
EXTENSION = "fleetbus.dev/test-cluster"
"""The kubeconfig extension with a cluster's facts for `support.servers.real_cluster`."""

_READY = timedelta(seconds=120)
_STOP = timedelta(seconds=20)
_CALL_SECONDS = 5
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["system:apiserver", "system:anonymous"]},
        {"level": "None", "userGroups": ["system:e2e-controllers"]},
        {"level": "Metadata"},
    ],
}

Json = dict[str, Any]


@dataclass
class Plane:
    """One control plane; see `control_planes`.

    Attributes:
        name: of the cluster.
        folder: its certificates, logs and the data of etcd.
        programs: the folder of etcd and kube-apiserver.
        progress: how often etcd tells idle watches where it is; None is its default, 10 minutes.
        host: the API server's address.
        account_admission: pods get the tokens of their ServiceAccounts, as in every real cluster.
        agent_tokens: of the programs in a cluster that only its agent reaches
            (`support.servers.real_cluster`); None for any other.
    """

    name: str
    folder: Path
    programs: Path
    progress: timedelta | None = None
    host: str = LOOPBACK
    account_admission: bool = False
    agent_tokens: Mapping[str, str] | None = None
    _ports: dict[str, HeldPort] = field(default_factory=dict[str, HeldPort])
    _children: dict[str, Child] = field(default_factory=dict[str, Child])

    @property
    def url(self) -> str:
        """Where the API server is."""
        return f"https://{self.host}:{self._ports['apiserver'].number}"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line: who asked what."""
        return self.folder / "audit.log"

    @property
    def authority(self) -> Path:
        """Whom clients have to trust."""
        return self.folder / "ca.pem"

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare the folder and start etcd and the API server."""
        self.folder.mkdir(parents=True)
        self._ports = {name: HeldPort(LOOPBACK) for name in ("etcd", "peer")}
        self._ports["apiserver"] = HeldPort(self.host)
        self._write_files()
        await self.start_etcd()
        await self.start_apiserver()

    async def aclose(self) -> None:
        """Stop everything, and give the ports back."""
        try:
            for child in reversed(list(self._children.values())):
                child.terminate()
            for child in reversed(list(self._children.values())):
                await child.stop(patience=_STOP)
        finally:
            for child in self._children.values():
                child.kill()  # if we were cancelled meanwhile
            for port in self._ports.values():
                port.release()

    async def start_etcd(self) -> None:
        """Start etcd, with the data that it has."""
        await self._start("etcd", self._etcd_command(), self._etcd_is_ready)

    async def start_apiserver(self) -> None:
        """Start the API server."""
        await self._start("kube-apiserver", self._apiserver_command(), self.is_ready)

    async def start_controllers(self) -> None:
        """Start the controllers: namespaces, garbage, workloads; without nodes nothing runs."""
        command = [
            self.programs / "kube-controller-manager",
            f"--kubeconfig={self.write_kubeconfig('controllers', token='e2e-controllers')}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--root-ca-file={self.authority}",
            "--use-service-account-credentials=false",
        ]
        await self._start("kube-controller-manager", command, lambda: True)

    def kill(self, program: str) -> None:
        """End a program as a crash does (SIGKILL)."""
        self._children[program].kill()

    async def stop(self, program: str) -> None:
        """End a program in good order."""
        await self._children[program].stop(patience=_STOP)

    def raise_if_ended(self) -> None:
        """Raise ChildError if a program ended by itself."""
        for child in self._children.values():
            child.raise_if_ended()

    async def _start(self, name: str, command: Sequence[str | Path], is_ready: Any) -> None:
        if name in self._children:
            self._children[name].respawn(command)
        else:
            log = self.folder / f"{name}.log"
            self._children[name] = Child(f"{name} of {self.name}", command, log=log)
        await self._children[name].wait_until(is_ready, within=_READY)

    # --- what can be done to it -----------------------------------------------------------------

    def compact(self) -> int:
        """Let etcd forget all history up to now; returns the revision.

        The API server still has what its watch caches hold, until it starts again.
        """
        revision = int(self._ask_etcd("/v3/maintenance/status", {})["header"]["revision"])
        self._ask_etcd("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def version(self) -> str:
        """The version of the API server."""
        return self._ask("/version")["gitVersion"]

    def is_ready(self) -> bool:
        """Whether the API server is ready."""
        try:
            with self._open("/readyz") as answer:
                return answer.status == 200
        except OSError:
            return False

    def kubeconfig(self, token: str = ADMIN_TOKEN) -> Json:
        """Access for whom the token names; the context is called as the cluster."""
        return kubeconfig_of({self.name: (self, token)})

    def write_kubeconfig(self, user: str, *, token: str) -> Path:
        """The same as a file, named for the user."""
        path = self.folder / f"{user}.kubeconfig"
        fresh = path.with_suffix(".part")
        fresh.touch(mode=0o600)
        fresh.write_text(yaml.safe_dump(self.kubeconfig(token), sort_keys=False))
        return fresh.rename(path)  # nobody reads half of it

    # --- details --------------------------------------------------------------------------------

    def _write_files(self) -> None:
        authority = trustme.CA(organization_name=f"e2e {self.name}")
        served = authority.issue_cert(*dict.fromkeys((self.host, LOOPBACK, "localhost")))
        authority.cert_pem.write_to_path(self.authority)
        served.private_key_and_cert_chain_pem.write_to_path(self.folder / "server.pem")
        authority.issue_cert("accounts").private_key_pem.write_to_path(self.folder / "accounts.key")
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT_POLICY))
        (self.folder / "tokens.csv").write_text(
            f'{ADMIN_TOKEN},e2e-admin,e2e-admin,"system:masters"\n'
            'e2e-controllers,e2e-controllers,e2e-controllers,"system:masters,system:e2e-controllers"\n'
        )

    def _etcd_command(self) -> list[str | Path]:
        client = f"http://{LOOPBACK}:{self._ports['etcd'].number}"
        peer = f"http://{LOOPBACK}:{self._ports['peer'].number}"
        command: list[str | Path] = [
            self.programs / "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            *(f"--{role}-client-urls={client}" for role in ("listen", "advertise")),
            *(f"--{role}-peer-urls={peer}" for role in ("listen", "initial-advertise")),
            f"--initial-cluster=default={peer}",
            # A killed process loses nothing by it; only the machine's own failure would.
            "--unsafe-no-fsync",
        ]
        if self.progress is not None:
            flag = _progress_flag(self.programs / "etcd")
            command.append(f"{flag}={self.progress.total_seconds():g}s")
        return command

    def _apiserver_command(self) -> list[str | Path]:
        served, accounts = self.folder / "server.pem", self.folder / "accounts.key"
        return [
            self.programs / "kube-apiserver",
            f"--etcd-servers=http://{LOOPBACK}:{self._ports['etcd'].number}",
            f"--bind-address={self.host}",
            f"--advertise-address={self.host}",
            f"--secure-port={self._ports['apiserver'].number}",
            f"--tls-cert-file={served}",
            f"--tls-private-key-file={served}",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            *([] if self.account_admission else ["--disable-admission-plugins=ServiceAccount"]),
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=10000",  # one file, without rotation
        ]

    def _etcd_is_ready(self) -> bool:
        try:
            return bool(self._ask_etcd("/v3/maintenance/status", {}).get("leader"))
        except OSError:
            return False

    def _ask_etcd(self, path: str, body: Json) -> Json:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self._ports['etcd'].number}{path}",
            data=json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as answer:  # noqa: S310
            return json.load(answer)

    def _ask(self, path: str) -> Json:
        with self._open(path) as answer:
            return json.load(answer)

    def _open(self, path: str) -> Any:
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.url + path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        context = ssl.create_default_context(cafile=str(self.authority))
        return urllib.request.urlopen(request, timeout=_CALL_SECONDS, context=context)  # noqa: S310


def _progress_flag(etcd: Path) -> str:
    """The flag of etcd for its progress notifications, which is an experiment before 3.6."""
    shown = subprocess.run([etcd, "--help"], capture_output=True, text=True, check=True).stdout
    name = "watch-progress-notify-interval"
    is_plain = re.search(rf"^\s+--{name} ", shown, re.MULTILINE)
    return f"--{name}" if is_plain else f"--experimental-{name}"


def kubeconfig_of(planes: dict[str, tuple[Plane, str]]) -> Json:
    """A kubeconfig with a context per plane and the token to show there; the first is current."""

    def cluster(plane: Plane) -> Json:
        authority = base64.b64encode(plane.authority.read_bytes()).decode()
        extension: Json = {"disposable": True, "auditLog": str(plane.audit_log)}
        if plane.agent_tokens is not None:
            extension["agent"] = dict(plane.agent_tokens)
        return {
            "server": plane.url,
            "certificate-authority-data": authority,
            "extensions": [{"name": EXTENSION, "extension": extension}],
        }

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(planes)),
        "clusters": [{"name": n, "cluster": cluster(plane)} for n, (plane, _) in planes.items()],
        "users": [{"name": n, "user": {"token": token}} for n, (_, token) in planes.items()],
        "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in planes],
    }


@asynccontextmanager
async def control_planes(
    progress: Mapping[str, timedelta | None], folder: Path, programs: Path
) -> AsyncGenerator[dict[str, Plane]]:
    """Control planes until the block ends; then none of their processes is left.

    Call it from the main thread: processes are started from there only.

    Args:
        progress: their names, and how often etcd tells idle watches where it is (`Plane`).
        folder: takes a folder for each.
        programs: the folder of etcd and the others.
    """
    planes = {n: Plane(n, folder / n, programs, often) for n, often in progress.items()}
    async with AsyncExitStack() as exits:
        for plane in planes.values():
            exits.push_async_callback(plane.aclose)
        # One failure cancels the others, and the stack stops what each has started.
        async with asyncio.TaskGroup() as group:
            for plane in planes.values():
                group.create_task(plane.start(), name=f"start {plane.name}")
        yield planes


async def _show() -> None:
    from e2e.binaries import find_programs  # noqa: PLC0415 - for this command alone
    from fleetbus_emulator.scratch import scratch_folder  # noqa: PLC0415 - the same

    with scratch_folder("planes") as folder:
        async with control_planes(dict.fromkeys("abc"), folder, find_programs()) as planes:
            path = folder / "kubeconfig"
            path.touch(mode=0o600)
            document = kubeconfig_of({name: (plane, ADMIN_TOKEN) for name, plane in planes.items()})
            path.write_text(yaml.safe_dump(document))
            print(f"export FLEETBUS_TEST_KUBECONFIG={path}", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(_show())
    except KeyboardInterrupt:
        sys.exit(130)
