"""A network and mounts of their own for a process and all that it starts.

In a new user namespace anybody may have them, root or not. The network has a loopback device with
addresses for API servers and Services, and a bridge for pods: nothing of it leads outside.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

_INSIDE: Final = "FLEETBUS_TEST_ISOLATED"
_TOOLS: Final = ("unshare", "nsenter", "mount", "chroot", "ip", "sh")
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")
BRIDGE: Final = "pods"
GATEWAY: Final = "10.244.0.1"
_SETUP: Final = f"""
set -e
ip link set lo up
for range in 10.0.0.1/16 10.1.0.1/16 10.96.0.1/12; do ip address add $range dev lo; done
ip link add {BRIDGE} type bridge
ip address add {GATEWAY}/16 dev {BRIDGE}
ip link set {BRIDGE} up
ip link add tried type veth peer name other
ip link delete tried
exec "$@"
"""
"""Services of real and emulated clusters, and 10.1.0.0/16 for API servers, are on loopback."""


def is_isolated() -> bool:
    """Whether this process is in namespaces that `isolated` made."""
    return _INSIDE in os.environ


def missing() -> str:
    """Why this machine cannot isolate a process; empty if it can."""
    if sys.platform != "linux":
        return "network and mount namespaces exist on Linux only"
    if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"install {', '.join(lacking)} (Debian: util-linux, iproute2)"
    tried = subprocess.run(
        isolated("true"), capture_output=True, text=True, check=False, timeout=20
    )
    if tried.returncode:
        return f"this machine allows no user, network and mount namespaces: {tried.stderr.strip()}"
    return ""


def isolated(*command: str) -> list[str]:
    """The command, with namespaces of its own around it."""
    return [*_UNSHARE, "env", f"{_INSIDE}=1", "sh", "-c", _SETUP, "sh", *command]


Test = Callable[..., Awaitable[None]]


def in_isolation(test: Test) -> Callable[..., Any]:
    """Run a test in a process of its own inside of `isolated`; it is skipped where that fails."""
    if is_isolated():
        return test

    @functools.wraps(test)
    def outer() -> None:
        if reason := missing():
            pytest.skip(reason)
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        command = [sys.executable, "-m", "pytest", "-q", "-n0", name]
        done = subprocess.run(isolated(*command), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    # pytest asks for the fixtures of the function that it sees.
    del outer.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    return outer
