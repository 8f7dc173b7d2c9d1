"""The projector of the workers' campaign: NATS waits less long for what a killed worker had."""

from __future__ import annotations

import sys

from faults.workers.settings import ACK_WAIT
from fleetbus.bus import durables
from fleetbus_reconciler.main import main
from support.processes.patch import replace

if __name__ == "__main__":
    replace(durables, "ACK_WAIT", ACK_WAIT)
    sys.exit(main([]))
