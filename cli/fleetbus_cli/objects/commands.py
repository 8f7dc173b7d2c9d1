"""Arguments of `fleetbus get`, `describe` and `api-resources`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from fleetbus.errors import ConfigError
from fleetbus_cli.completion import complete_clusters, complete_objects
from fleetbus_cli.options import ApiCaFile, ApiTokenFile, ApiTokenText, ApiUrl, output_option
from fleetbus_cli.target import ApiFlags

_FORMS: Final = ("table", "wide", "json", "yaml", "name")
_TEMPLATES: Final = ("jsonpath", "custom-columns")

_Objects = Annotated[
    list[str],
    typer.Argument(
        metavar="TYPE[,TYPE] [NAME]... | TYPE/NAME...",
        help="Types, like pods, deploy or apps/v1/deployments, and names.",
        autocompletion=complete_objects,
    ),
]
_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")]
_AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="All namespaces (the default).")
]
_Selector = Annotated[str, typer.Option("--selector", "-l", help="Label selector, like app=web.")]
_FieldSelector = Annotated[
    str,
    typer.Option(
        "--field-selector", help="Field selector on any field, like status.phase=Running."
    ),
]
_SortBy = Annotated[
    str,
    typer.Option("--sort-by", help="Sort by this field, like .metadata.creationTimestamp."),
]
_Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        help="Only this cluster; may be repeated, or name several with commas.",
        autocompletion=complete_clusters,
    ),
]
_ManagedFields = Annotated[
    bool, typer.Option("--show-managed-fields", help="Include metadata.managedFields.")
]
_NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Print no column headers.")]


def _check_output(output: str) -> str:
    name, equals, detail = output.partition("=")
    if output in _FORMS or (name in _TEMPLATES and equals and detail):
        return output
    forms = ", ".join((*_FORMS, "jsonpath=TEMPLATE", "custom-columns=NAME:PATH,…"))
    raise ConfigError(f"--output {output!r} is not one of {forms}")


_Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="|".join((*_FORMS, *(f"{name}=…" for name in _TEMPLATES))),
        help="Output format.",
        callback=_check_output,
    ),
]


def get(
    objects: _Objects,
    namespace: _Namespace = "",
    all_namespaces: _AllNamespaces = False,
    selector: _Selector = "",
    field_selector: _FieldSelector = "",
    sort_by: _SortBy = "",
    cluster: _Clusters = None,
    output: _Output = "table",
    show_labels: Annotated[
        bool, typer.Option("--show-labels", help="Print the labels in the last column.")
    ] = False,
    no_headers: _NoHeaders = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Maximum number of objects per type; 0 for all.")
    ] = 0,
    show_managed_fields: _ManagedFields = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep printing changes until Ctrl-C.")
    ] = False,
    watch_only: Annotated[
        bool, typer.Option("--watch-only", help="Print changes only, without the present objects.")
    ] = False,
    output_watch_events: Annotated[
        bool,
        typer.Option(
            "--output-watch-events", help="Print ADDED, MODIFIED or DELETED with each change."
        ),
    ] = False,
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Show the state of 10m, 2h or 1d ago, or at a time like 2026-01-02T15:04Z.",
        ),
    ] = "",
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Show deleted objects, in their last states.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="TIME", help="With --deleted: start of the period; 1h by default."
        ),
    ] = "",
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """List objects in every cluster, or show some."""
    from fleetbus_cli.objects.arguments import parse_objects  # noqa: PLC0415 -- import cost
    from fleetbus_cli.objects.forms import Output  # noqa: PLC0415 -- import cost
    from fleetbus_cli.objects.get import show_objects  # noqa: PLC0415 -- import cost
    from fleetbus_cli.objects.query import ObjectQuery, sort_field  # noqa: PLC0415 -- import cost
    from fleetbus_cli.objects.watching import (  # noqa: PLC0415 -- import cost
        Watching,
        watch_objects,
    )

    chosen = parse_objects(objects)
    if selector and any(choice.names for choice in chosen):
        raise ConfigError("a name and --selector cannot be given together")
    query = ObjectQuery(
        resource="",
        namespace="" if all_namespaces else namespace,  # as in kubectl
        selector=selector,
        field_selector=field_selector,
        sort=sort_field(sort_by),
        clusters=[name for names in cluster or () for name in names.split(",")],
        limit=limit,
        as_of=as_of,
    )
    form = Output(
        form=output,
        show_labels=show_labels,
        no_headers=no_headers,
        show_managed_fields=show_managed_fields,
    )
    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    if deleted or since:
        from fleetbus_cli.history.deleted import show_deleted  # noqa: PLC0415 -- import cost

        if not deleted or as_of or watch or watch_only or sort_by or show_labels or no_headers:
            raise ConfigError(
                "--deleted can only be combined with --since, names, selectors, --limit and"
                " --output"
            )
        raise typer.Exit(show_deleted(chosen, query, since or "1h", output, api))
    if as_of and (watch or watch_only or sort_by):
        raise ConfigError("--as-of cannot be combined with --watch and --sort-by")
    if watch or watch_only:
        how = Watching(is_only=watch_only, has_events=output_watch_events)
        raise typer.Exit(watch_objects(chosen, query, form, how, api))
    if output_watch_events:
        raise ConfigError("--output-watch-events needs --watch")
    raise typer.Exit(show_objects(chosen, query, form, api))


def describe(
    objects: _Objects,
    namespace: _Namespace = "",
    all_namespaces: _AllNamespaces = False,
    selector: _Selector = "",
    cluster: _Clusters = None,
    show_managed_fields: _ManagedFields = False,
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """Show objects as YAML, from every cluster that has them."""
    get(
        objects,
        namespace=namespace,
        all_namespaces=all_namespaces,
        selector=selector,
        cluster=cluster,
        output="yaml",
        show_managed_fields=show_managed_fields,
        api_url=api_url,
        token=token,
        token_file=token_file,
        ca_file=ca_file,
    )


def api_resources(
    output: Annotated[str, output_option("table", "wide", "json", "name")] = "table",
    namespaced: Annotated[
        bool | None,
        typer.Option(
            "--namespaced/--not-namespaced", help="Only types that are namespaced, or that are not."
        ),
    ] = None,
    no_headers: _NoHeaders = False,
    api_url: ApiUrl = None,
    token: ApiTokenText = None,
    token_file: ApiTokenFile = None,
    ca_file: ApiCaFile = None,
) -> None:
    """List the resource types in the fleet."""
    from fleetbus_cli.objects.types import show_types  # noqa: PLC0415 -- import cost

    api = ApiFlags(url=api_url, token=token, token_file=token_file, ca_file=ca_file)
    raise typer.Exit(show_types(output, api, namespaced=namespaced, no_headers=no_headers))
