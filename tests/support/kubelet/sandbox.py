"""The network and host name that the containers of a pod share, held by a process of its own."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from fleetbus_devfleet.processes.children import Child
from support.kubelet.isolation import BRIDGE, GATEWAY

_UNSHARE: Final = shutil.which("unshare") or "unshare"
_NSENTER: Final = shutil.which("nsenter") or "nsenter"
_READY: Final = timedelta(seconds=20)
# `{name}` of the link is at most 15 characters.
_SETUP: Final = """
set -eu
printf %s {hostname} > /proc/sys/kernel/hostname
ip link set lo up
ip link add eth0 type veth peer name {link} netns {node}
nsenter --target {node} --net ip link set {link} master {bridge} up
ip address add {address}/16 dev eth0
ip link set eth0 up
ip route add default via {gateway}
{unreachable}
touch {ready}
exec sleep infinity
"""


class Sandbox:
    """Starts at once; `start` waits until the network is there.

    Args:
        folder: for its log.
        hostname: of the pod.
        address: of the pod.
        unreachable: addresses to which it has no route.
    """

    def __init__(
        self, folder: Path, hostname: str, address: str, unreachable: Sequence[str] = ()
    ) -> None:
        self._ready = folder / "sandbox-ready"
        folder.mkdir(parents=True, exist_ok=True)
        script = _SETUP.format(
            hostname=shlex.quote(hostname),
            link=f"pod{address.rpartition('.')[0].rpartition('.')[2]}.{address.rpartition('.')[2]}",
            node=os.getpid(),
            bridge=BRIDGE,
            address=address,
            gateway=GATEWAY,
            unreachable="\n".join(f"ip route add unreachable {place}" for place in unreachable),
            ready=shlex.quote(str(self._ready)),
        )
        command = [_UNSHARE, "--net", "--uts", "sh", "-c", script]
        self._child = Child(f"sandbox of {hostname}", command, log=folder / "sandbox.log")

    @property
    def enter(self) -> list[str]:
        """The beginning of the command of a process in it."""
        return [_NSENTER, "--target", str(self._child.pid), "--net", "--uts", "--"]

    async def start(self) -> None:
        """Wait until it has its network."""
        await self._child.wait_until(self._ready.exists, within=_READY)

    def kill(self) -> None:
        """End it."""
        self._child.kill()
