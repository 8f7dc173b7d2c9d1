"""The reconciler service of the rolling updates: with shorter waits, and perhaps without a rule.

python tests/run.py faults.workers.roller MUTATION LATE [MODULE...]
"""

from __future__ import annotations

import sys
from datetime import timedelta

from faults.workers.mutants import ROLLOUT_MUTATIONS
from faults.workers.settings import ACK_WAIT, POLICY
from fleetbus.bus import durables
from fleetbus.worker import backlog, host, reader
from fleetbus_reconciler.main import main
from support.processes.patch import replace

_GRACE = timedelta(milliseconds=100)
"""Short, so that a controller with a slow map skips events where few may be late."""

if __name__ == "__main__":
    _, mutation, late, *modules = sys.argv
    replace(durables, "ACK_WAIT", ACK_WAIT)
    replace(host, "QueuePolicy", lambda: POLICY)
    replace(reader, "LATE", int(late))
    replace(backlog, "GRACE", _GRACE)
    if mutation:
        ROLLOUT_MUTATIONS[mutation]()
    sys.exit(main(modules))
