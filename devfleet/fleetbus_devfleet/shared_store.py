"""One Valkey for all the tests of a process, started when the first of them asks."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from fleetbus_devfleet.processes.servers import ValkeyServer, valkey_server_blocking
from fleetbus_emulator.scratch import scratch_folder

_running: list[tuple[ValkeyServer, ExitStack]] = []


def shared_store() -> str:
    """The URL of the Valkey of this process; it ends with the process.

    Raises:
        ServerMissingError: there is no binary to start.
    """
    if _running and _running[0][0].child.is_running:
        return _running[0][0].url
    close_shared_store()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("store"))
        server = stack.enter_context(valkey_server_blocking(dir=folder))
        _running.append((server, stack.pop_all()))
    atexit.register(close_shared_store)
    return server.url


def close_shared_store() -> None:
    """End it now; the next one who asks gets another."""
    while _running:
        _running.pop()[1].close()
    atexit.unregister(close_shared_store)
