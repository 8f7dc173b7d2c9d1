"""The kubectl plugin `kubectl multicluster`, with the verbs of multi_resource_operator."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from fleetbus.errors import FleetbusError
from fleetbus.process import printer
from fleetbus_cli.config.origins import note_origins
from fleetbus_cli.unknown import exit_status

if TYPE_CHECKING:
    from fleetbus_cli.target import ApiFlags

_VERBS: Final = ("list", "describe", "join", "unjoin")
_KUBECTL: Final = ("apply", "create", "delete", "edit")
_EPILOG: Final = (
    "The default verb is `list`. apply, create, delete and edit run kubectl against the hub."
    " ~/.multi-cluster-operator/config is read last, and created on first use."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `kubectl-multicluster`; return the exit status."""
    note_origins(program="kubectl-multicluster")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] == "get":
        printer.note(
            "kubectl-multicluster: get is a command of fleetbus: use `fleetbus get`, or `list` here"
        )
        return 2
    if arguments and arguments[0] not in (*_KUBECTL, *_VERBS, "-h", "--help"):
        arguments.insert(0, "list")
    try:
        return _run_verb(arguments)
    except SystemExit as e:
        return int(e.code or 0)
    except FleetbusError as e:
        printer.note(f"kubectl-multicluster: {e}")
        return exit_status(e)
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        return 130


def _run_verb(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in _KUBECTL:
        from fleetbus_cli.kubectl_verbs import run_kubectl  # noqa: PLC0415 -- import cost

        return run_kubectl(arguments[0], arguments[1:])
    return _run(_parser().parse_args(arguments))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors quote no letter that a terminal obeys (rule S11)."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error; exit."""
        super().error(printer.printable(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kubectl-multicluster",
        description="Show the objects of every cluster of the fleet.",
        epilog=_EPILOG,
    )
    verb_names = ",".join((*_VERBS, *_KUBECTL))
    verbs = parser.add_subparsers(dest="verb", required=True, metavar=f"{{{verb_names}}}")

    def add_verb(verb: str, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(verb, help=text, description=text)
        _add_api_flags(added)
        return added

    listing = add_verb("list", "Show objects, newest first.")
    _add_filters(listing)
    listing.add_argument(
        "-o", "--output", choices=("table", "wide", "json", "yaml"), default="table"
    )
    listing.add_argument("-w", "--watch", action="store_true", help="keep printing changes")
    describing = add_verb("describe", "Show objects as YAML.")
    _add_filters(describing)
    describing.add_argument(
        "--show-managed-fields", action="store_true", help="show managedFields too"
    )
    joining = add_verb("join", "Add a cluster to the fleet.")
    add = joining.add_argument
    add("name", help="name of the cluster in the fleet")
    add("--file", type=pathlib.Path, required=True, help="kubeconfig of the cluster")
    add("--context", default="", help="context in the kubeconfig; by default the current one")
    add("--insecure", action="store_true", help="do not verify the API server's certificate")
    leaving = add_verb("unjoin", "Remove a cluster from the fleet; its objects stay there.")
    leaving.add_argument("name", help="name of the cluster in the fleet")
    return parser


def _add_filters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("resource", help="pods, v1/pods, apps.v1.deployments, …; or clusters")
    add("--clusterName", default="", help="only this cluster")
    add("--name", default="", help="only objects of this name")
    add("-n", "--namespace", default="", help="only this namespace")
    add("-l", "--selector", default="", help="label selector, like app=web")


def _add_api_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--api-url", default=None, help="address of the query API")
    add("--token", default=None, help="bearer token for the query API")
    add("--token-file", type=pathlib.Path, default=None, help="file with the bearer token")
    add("--ca-file", type=pathlib.Path, default=None, help="CA of the query API's certificate")


def _run(arguments: argparse.Namespace) -> int:
    # Imported here: --help and bad usage need none of it.
    from fleetbus_cli.mro_config import create_mro_config  # noqa: PLC0415
    from fleetbus_cli.target import ApiFlags  # noqa: PLC0415

    api = ApiFlags(
        url=arguments.api_url,
        token=arguments.token,
        token_file=arguments.token_file,
        ca_file=arguments.ca_file,
    )
    status = (_change if arguments.verb in ("join", "unjoin") else _show)(arguments, api)
    if status == 0 and api.url is None:  # an address that was given once is not for ever
        create_mro_config(api.resolve().api_url)
    return status


def _show(arguments: argparse.Namespace, api: ApiFlags) -> int:
    from fleetbus_cli.objects.mro_list import MroQuery, describe, show_list, watch_list  # noqa: PLC0415

    query = MroQuery(
        resource=arguments.resource,
        cluster=arguments.clusterName,
        name=arguments.name,
        namespace=arguments.namespace,
        selector=arguments.selector,
        api=api,
    )
    if arguments.verb == "list":
        return (watch_list if arguments.watch else show_list)(query, arguments.output)
    return describe(query, show_managed_fields=arguments.show_managed_fields)


def _change(arguments: argparse.Namespace, api: ApiFlags) -> int:
    from fleetbus_cli.clusters.api_join import join_by_api, unjoin_by_api  # noqa: PLC0415

    if arguments.verb == "unjoin":
        return unjoin_by_api(arguments.name, api)
    return join_by_api(
        arguments.name,
        arguments.file,
        context=arguments.context,
        insecure=arguments.insecure,
        api=api,
    )


if __name__ == "__main__":
    sys.exit(main())
