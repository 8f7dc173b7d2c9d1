"""The command `python -m fleetbus_devfleet`: own a whole stack until it is stopped.

`fleetbus dev up` starts it.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus.errors import CaptureError
from fleetbus.process import printer
from fleetbus_cli.capture.reading import Capture
from fleetbus_devfleet.stack.captured_clusters import MOST_WATCHERS, clusters_of
from fleetbus_devfleet.stack.plan import Layout, PlanError, StackPlan, fleet_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        return _supervise(read_plan(arguments))
    except (PlanError, CaptureError, OSError) as error:
        printer.note(f"fleetbus-devfleet: {error}")
        return 2 if isinstance(error, PlanError) else 1
    except KeyboardInterrupt:
        return 130


def read_plan(arguments: Sequence[str] | None = None) -> StackPlan:
    """The stack of a command line; None reads that of this process."""
    options = _parser().parse_args(arguments)
    capture: Path | None = options.capture
    clusters = (
        fleet_of(options.clusters, agents=options.agents)
        if capture is None
        else clusters_of(Capture.open(capture))
    )
    return StackPlan(
        layout=Layout(root=options.dir.absolute()),
        clusters=clusters,
        capture=capture,
        pool=capture is not None and len(clusters) > MOST_WATCHERS,
        record=options.record,
        secrets=options.secrets,
        progress_interval=options.progress_interval,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleetbus-devfleet", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--clusters", type=int, help="how many")
    chosen.add_argument("--from", type=Path, dest="capture", help="those of a capture")
    parser.add_argument("--agents", type=int, default=0, help="how many are behind agents")
    parser.add_argument("--dir", type=Path, required=True, help="the folder of the stack")
    parser.add_argument("--record", action="store_true", help="write the ground truth to DIR/truth")
    parser.add_argument("--secrets", action="store_true", help="watch Secrets, without values")
    parser.add_argument("--progress-interval", type=_seconds, help="of the stores, in seconds")
    return parser


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


def _supervise(plan: StackPlan) -> int:
    from fleetbus_devfleet.stack.supervisor import supervise  # noqa: PLC0415

    return supervise(plan)


if __name__ == "__main__":
    sys.exit(main())
