"""The kubectl plugin `kubectl multicluster`, with the verbs of multi_resource_operator."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Final

from fleetbus.cli.unknown import exit_status
from fleetbus.errors import FleetbusError

_VERBS: Final = ("list", "describe")
_UNSUPPORTED: Final = ("get", "join", "unjoin")
_KUBECTL: Final = ("apply", "create", "delete", "edit")
_EPILOG: Final = (
    "The default verb is `list`. apply, create, delete and edit are those of kubectl, against the "
    "hub; get, join and unjoin are commands of fleetbus."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `kubectl-multicluster`; return the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in _UNSUPPORTED:
        print(
            f"kubectl-multicluster: {given[0]} is a command of fleetbus: `fleetbus {given[0]}`",
            file=sys.stderr,
        )
        return 2
    if given and given[0] not in (*_KUBECTL, *_VERBS, "-h", "--help"):
        given.insert(0, "list")
    try:
        return _run_verb(given)
    except SystemExit as e:
        return int(e.code or 0)
    except FleetbusError as e:
        print(f"kubectl-multicluster: {e}", file=sys.stderr)
        return exit_status(e)
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        return 130


def _run_verb(given: Sequence[str]) -> int:
    if given and given[0] in _KUBECTL:
        from fleetbus.cli.kubectl_verbs import run_kubectl  # noqa: PLC0415 -- import cost

        return run_kubectl(given[0], given[1:])
    return _run(_parser().parse_args(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl-multicluster",
        description="Show the objects of every cluster of the fleet.",
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{list,describe}")
    for verb, text in (
        ("list", "Show objects, newest first."),
        ("describe", "Show objects as YAML."),
    ):
        add = verbs.add_parser(verb, help=text, description=text).add_argument
        add("resource", help="pods, v1/pods, apps.v1.deployments, …; or clusters")
        add("--clusterName", default="", help="only this cluster")
        add("--name", default="", help="only objects of this name")
        add("-n", "--namespace", default="", help="only this namespace")
        add("-l", "--selector", default="", help="label selector, like app=web")
        add("--api-url", default=None, help="address of the query API")
        add("--token", default=None, help="bearer token for the query API")
        add("--token-file", type=pathlib.Path, default=None, help="file with that token")
        add("--ca-file", type=pathlib.Path, default=None, help="authority of its certificate")
        if verb == "list":
            add("-o", "--output", choices=("table", "json", "yaml"), default="table")
        else:
            add("--show-managed-fields", action="store_true", help="show managedFields too")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    # Imported here: --help and bad usage need none of it.
    from fleetbus.cli.objects.mro_list import MroQuery, describe, show_list  # noqa: PLC0415
    from fleetbus.cli.target import ApiFlags  # noqa: PLC0415

    query = MroQuery(
        resource=arguments.resource,
        cluster=arguments.clusterName,
        name=arguments.name,
        namespace=arguments.namespace,
        selector=arguments.selector,
        api=ApiFlags(
            url=arguments.api_url,
            token=arguments.token,
            token_file=arguments.token_file,
            ca_file=arguments.ca_file,
        ),
    )
    if arguments.verb == "list":
        return show_list(query, arguments.output)
    return describe(query, show_managed_fields=arguments.show_managed_fields)


if __name__ == "__main__":
    sys.exit(main())
