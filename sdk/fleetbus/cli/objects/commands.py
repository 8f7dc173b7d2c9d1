"""Arguments of `fleetbus get` and `describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetbus.cli.options import ApiCaFile, ApiTokenFile, ApiTokenText, ApiUrl, output_option
from fleetbus.cli.target import ApiFlags
from fleetbus.errors import ConfigError

_Resource = Annotated[
    str, typer.Argument(help="Resource, like pods, deploy or apps/v1/deployments.")
]
_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")]
_AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="All namespaces (the default).")
]
_Selector = Annotated[str, typer.Option("--selector", "-l", help="Label selector, like app=web.")]
_Clusters = Annotated[
    list[str] | None, typer.Option("--cluster", help="Only this cluster; may be repeated.")
]
_ManagedFields = Annotated[
    bool, typer.Option("--show-managed-fields", help="Include metadata.managedFields.")
]


def _check_not_kubectl(resource: str, name: str) -> None:
    """Refuse kubectl's TYPE/NAME: fleetbus takes the name as an argument of its own.

    Raises:
        ConfigError: it has that form.
    """
    kind, slash, last = resource.partition("/")
    is_versioned = kind.startswith("v") and kind[1:2].isdigit()
    if slash and not name and "/" not in last and "." not in kind and not is_versioned:
        raise ConfigError(
            f"{resource!r} is not a resource; for one object, `fleetbus get {kind} {last}`"
        )


def get(
    resource: _Resource,
    name: Annotated[str, typer.Argument(help="Only objects with this name.")] = "",
    namespace: _Namespace = "",
    all_namespaces: _AllNamespaces = False,
    selector: _Selector = "",
    cluster: _Clusters = None,
    output: Annotated[str, output_option("table", "wide", "json", "yaml", "name")] = "table",
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Most objects to show; 0 for all.")
    ] = 0,
    show_managed_fields: _ManagedFields = False,
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """List the objects of a resource in every cluster."""
    from fleetbus.cli.objects.get import ObjectQuery, show_objects  # noqa: PLC0415 -- import cost

    _check_not_kubectl(resource, name)
    if name and selector:
        raise ConfigError("a name and --selector cannot be given together")
    query = ObjectQuery(
        resource=resource,
        name=name,
        namespace="" if all_namespaces else namespace,  # as in kubectl
        selector=selector,
        clusters=cluster or [],
        limit=limit,
    )
    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    status = show_objects(query, output, api, show_managed_fields=show_managed_fields)
    raise typer.Exit(status)


def describe(
    resource: _Resource,
    name: Annotated[str, typer.Argument(help="Name of the object.")],
    namespace: _Namespace = "",
    all_namespaces: _AllNamespaces = False,
    cluster: _Clusters = None,
    show_managed_fields: _ManagedFields = False,
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Show an object as YAML, from every cluster that has it."""
    from fleetbus.cli.objects.get import ObjectQuery, describe_objects  # noqa: PLC0415 -- import cost

    query = ObjectQuery(
        resource=resource,
        name=name,
        namespace="" if all_namespaces else namespace,
        clusters=cluster or [],
    )
    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    status = describe_objects(query, api, show_managed_fields=show_managed_fields)
    raise typer.Exit(status)
