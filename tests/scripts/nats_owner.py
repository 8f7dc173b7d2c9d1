"""Owns a NATS server until it is killed; prints the server's process id and its folder."""

from __future__ import annotations

import time

from fleetbus_devfleet.processes.servers import nats_server_blocking
from fleetbus_emulator.scratch import scratch_folder

if __name__ == "__main__":
    with scratch_folder("victim") as folder, nats_server_blocking(store_dir=folder) as server:
        print(server.pid, folder, flush=True)
        time.sleep(60)  # until it is killed
