"""The command `fleetbus-devfleet`: the processes that a local stack is made of.

People use `fleetbus dev` and `fleetbus demo`; these commands are what those start.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus_devfleet.stack.plan import ClusterPlan, Layout, PlanError, StackPlan, fleet_of

if TYPE_CHECKING:
    from collections.abc import Sequence

LAST_PORT = 65_535


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = read_arguments(arguments)
    try:
        return _supervise(given) if given.command == "supervise" else _serve(given)
    except PlanError as error:
        print(f"fleetbus-devfleet: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except OSError as error:  # a folder or a port that cannot be had
        print(f"fleetbus-devfleet: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options; None stands for those of this process."""
    return _parser().parse_args(arguments)


def _port(text: str) -> int:
    """A port, or 0 for a free one."""
    port = int(text)
    if not 0 <= port <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"{port} is no port: they end at {LAST_PORT}")
    return port


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleetbus-devfleet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("apiserver", help="emulate clusters until stopped")
    serve.add_argument("--clusters", required=True, help="their names, comma-separated")
    serve.add_argument("--dir", type=Path, required=True, help="the kubeconfig is written here")
    serve.add_argument("--admin-port", type=_port, default=0, help="of the admin endpoint")
    serve.add_argument("--record", action="store_true", help="write the ground truth to DIR/truth")
    serve.add_argument("--instant", action="store_true", help="Pods start and stop at once")
    supervise = commands.add_parser("supervise", help="own a whole stack until stopped")
    supervise.add_argument("--clusters", type=int, required=True, help="how many")
    supervise.add_argument("--dir", type=Path, required=True, help="the folder of the stack")
    supervise.add_argument("--record", action="store_true", help="as above")
    for command in (serve, supervise):
        command.add_argument("--progress-interval", type=_seconds, help="of the stores, in seconds")
    return parser


def _supervise(given: argparse.Namespace) -> int:
    from fleetbus.kube.connection.config import import_light  # noqa: PLC0415 - the emulator needs less
    from fleetbus_devfleet.stack.supervisor import supervise  # noqa: PLC0415 - as above

    import_light()
    layout = Layout(root=given.dir.absolute())
    clusters = fleet_of(given.clusters)
    plan = StackPlan(
        layout=layout,
        clusters=clusters,
        record=given.record,
        progress_interval=given.progress_interval,
    )
    return supervise(plan)


def _serve(given: argparse.Namespace) -> int:
    from fleetbus_devfleet.serve import serve_clusters  # noqa: PLC0415 - as above

    layout = Layout(root=given.dir.absolute())
    clusters = tuple(ClusterPlan(name=name) for name in given.clusters.split(","))
    plan = StackPlan(
        layout=layout,
        clusters=clusters,
        record=given.record,
        instant=given.instant,
        progress_interval=given.progress_interval,
    )
    return serve_clusters(plan, admin_port=given.admin_port)


if __name__ == "__main__":
    sys.exit(main())
