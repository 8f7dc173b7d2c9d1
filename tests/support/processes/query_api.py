"""The query API as a process: to kill it, and to measure its memory."""

from __future__ import annotations

import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus_devfleet.processes.children import Child

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND = Path(sys.executable).parent / "fleetbus-query-api"


async def start_query_api(
    folder: Path, environment: Mapping[str, str], *, port: int = 0
) -> tuple[Child, str]:
    """Start one, without limits per second.

    Args:
        folder: for its port and its log, `query-api.log`.
        environment: its settings, with `FLEETBUS_`; whoever starts it stops it.
        port: where it listens on loopback; 0 for a free one.

    Returns:
        The process, and its URL.
    """
    file = folder / "port"
    file.unlink(missing_ok=True)
    variables = {
        "FLEETBUS_QUERY_API_PORT": str(port),
        "FLEETBUS_QUERY_API_PORT_FILE": str(file),
        "FLEETBUS_QUERY_API_USER_REQUESTS_PER_SECOND": "100000",
    }
    log = folder / "query-api.log"
    child = Child(
        "query-api", [str(COMMAND)], log=log, env={**os.environ, **variables, **environment}
    )
    try:
        await child.wait_until(file.exists, within=timedelta(seconds=30))
    except BaseException:
        await child.stop()
        raise
    return child, f"http://127.0.0.1:{file.read_text().strip()}"


def memory_of(pid: int, name: str = "VmRSS") -> float:
    """MiB of a process: `VmRSS` now, `VmHWM` at its peak."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    match = re.search(rf"{name}:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) / 1024
