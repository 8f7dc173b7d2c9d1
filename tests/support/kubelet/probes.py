"""The probes of a container, as the pod spec declares them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from support.kubelet.api import Object
from support.kubelet.environment import NotReadyError


@dataclass(frozen=True)
class Target:
    """Where probes go.

    Attributes:
        address: of the pod.
        enter: the command's beginning that runs a program in the container.
        environment: of the container, which programs in it have too.
    """

    address: str
    spec: Object
    enter: Sequence[str]
    environment: Mapping[str, str]

    def port(self, port: int | str) -> int:
        """The number of a port, which may be given by name."""
        if isinstance(port, int):
            return port
        named = {
            port_entry.get("name"): port_entry["containerPort"]
            for port_entry in self.spec.get("ports", ())
        }
        return int(named[port])

    async def run(self, command: Sequence[str], seconds: float) -> int | None:
        """Run a program in the container; its exit status, None if it took too long."""
        process = await asyncio.create_subprocess_exec(
            *self.enter,
            *command,
            env=dict(self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            # Not asyncio.wait_for: in Python 3.11 it loses a cancellation that comes with the end.
            async with asyncio.timeout(seconds):
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def succeeds(probe: Object, target: Target) -> bool:
    """Probe once.

    Raises:
        NotReadyError: the kind of probe is not understood.
    """
    seconds = float(probe.get("timeoutSeconds", 1))
    match probe:
        case {"httpGet": request}:
            return await _http(request, target, seconds)
        case {"exec": {"command": command}}:
            return await target.run(command, seconds) == 0
        case {"tcpSocket": {"port": port}}:
            return await _tcp(target.address, target.port(port), seconds)
        case _:
            raise NotReadyError(f"not understood: probe {sorted(probe)}")


async def _http(request: Object, target: Target, seconds: float) -> bool:
    scheme = request.get("scheme", "HTTP").lower()
    host = request.get("host") or target.address
    url = f"{scheme}://{host}:{target.port(request['port'])}{request.get('path', '/')}"
    headers = {header["name"]: header["value"] for header in request.get("httpHeaders", ())}
    try:
        # As kubelet: a probe does not look at the certificate.
        async with httpx.AsyncClient(verify=False, timeout=seconds) as client:  # noqa: S501
            return (await client.get(url, headers=headers)).status_code < httpx.codes.BAD_REQUEST
    except httpx.HTTPError:
        return False


async def _tcp(host: str, port: int, seconds: float) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), seconds)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    return True


class Threshold:
    """Counts results until a probe's state changes."""

    def __init__(self, probe: Object, *, state: bool) -> None:
        self._successes = int(probe.get("successThreshold", 1))
        self._failures = int(probe.get("failureThreshold", 3))
        self._row = 0
        self.state = state

    def take(self, *, success: bool) -> bool:
        """Note a result; the state after it."""
        self._row = 0 if success == self.state else self._row + 1
        if self._row >= (self._successes if success else self._failures):
            self.state, self._row = success, 0
        return self.state
