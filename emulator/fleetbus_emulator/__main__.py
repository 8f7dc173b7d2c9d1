"""The command `python -m fleetbus_emulator`: serve emulated clusters until it is stopped."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus_emulator.cluster_names import check_names
from fleetbus_emulator.process import Options, serve_clusters

if TYPE_CHECKING:
    from collections.abc import Sequence

LAST_PORT = 65_535


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        serve_clusters(read_options(arguments))
    except OSError as error:  # the folder or the port cannot be used
        print(f"fleetbus-emulator: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; None reads that of this process."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if strangers := set(options.closed) - set(options.clusters):
        parser.error(f"--closed names no cluster of --clusters: {', '.join(sorted(strangers))}")
    return Options(
        clusters=options.clusters,
        folder=options.dir.absolute(),
        admin_port=options.admin_port,
        record=options.record,
        instant=options.instant,
        closed=options.closed,
        progress_interval=options.progress_interval,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleetbus-emulator", description=__doc__)
    parser.add_argument("--clusters", type=_names, required=True, help="names, comma-separated")
    parser.add_argument("--dir", type=Path, required=True, help="the kubeconfig is written here")
    parser.add_argument(
        "--admin-port",
        type=_port,
        default=0,
        help="port of the admin endpoint; by default a free one",
    )
    parser.add_argument("--record", action="store_true", help="write the ground truth to DIR/truth")
    parser.add_argument("--instant", action="store_true", help="Pods start and stop at once")
    parser.add_argument(
        "--closed",
        type=_names,
        default=(),
        metavar="CLUSTERS",
        help="those that serve HTTPS and admit only who has the token of the kubeconfig",
    )
    parser.add_argument(
        "--progress-interval",
        type=_seconds,
        metavar="SECONDS",
        help="how often each cluster's store reports progress, on which bookmarks depend; by"
        " default all the time",
    )
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    try:
        check_names(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return names


def _port(text: str) -> int:
    """A port, or 0 for a free one."""
    port = int(text)
    if not 0 <= port <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"{port} is no port: they end at {LAST_PORT}")
    return port


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


if __name__ == "__main__":
    sys.exit(main())
