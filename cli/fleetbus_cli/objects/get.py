"""Runs `fleetbus get` and `describe`: prints objects from the query API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.objects.arguments import Chosen
from fleetbus_cli.objects.forms import Form, Output, find_form
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.objects.types import find_category
from fleetbus_cli.target import ApiFlags


def show_objects(
    chosen: Sequence[Chosen], query: ObjectQuery, output: Output, flags: ApiFlags
) -> int:
    """Print objects; return the exit status.

    Args:
        chosen: the resources and names.
        query: selects objects of each.
        output: how they are printed.
        flags: where the query API is.

    Raises:
        ConfigError: no query API address is set, or the output form is malformed.
    """
    api = ApiClient(flags.resolve())
    form = find_form(api, output)
    command = _Command(api, form, query)
    form.has_several = len({choice.resource for choice in chosen}) > 1
    for choice in chosen:
        command.show(choice)
    if not command.is_failed or command.shown:
        form.finish()
    if not command.shown and not command.is_failed:
        subject = command.empty[0] if len(command.empty) == 1 else "resources"
        printer.note(f"No {subject} found{where_of(query)}.")
    return int(command.is_failed)


class _Command:
    """Shows one resource after the other, and notes what was found."""

    def __init__(self, api: ApiClient, form: Form, query: ObjectQuery) -> None:
        self._api = api
        self._form = form
        self._query = query
        self.shown = 0
        self.is_failed = False
        self.empty: list[str] = []
        """The resources that were asked for."""

    def show(self, chosen: Chosen) -> None:
        """Show the objects of a resource, or of all resources of a category."""
        try:
            for name in chosen.names or ("",):
                self._show_one(chosen.resource, name)
        except ApiFailed as e:
            members = self._members(chosen) if e.status == HTTPStatus.NOT_FOUND else []
            self._form.has_several = self._form.has_several or len(members) > 1
            for member in members:
                self.show(Chosen(member, ()))
            if not members:
                self._fail(str(e))

    def _show_one(self, resource: str, name: str) -> None:
        query = replace(self._query, resource=resource, name=name)
        count, plural = self._form.show(query)
        self.shown += count
        self.empty.append(plural)
        if name and not count:
            self._fail(f"no {plural} {name!r}{where_of(query)}")

    def _members(self, chosen: Chosen) -> list[str]:
        try:
            return [] if chosen.names else find_category(self._api, chosen.resource)
        except ApiFailed:
            return []

    def _fail(self, message: str) -> None:
        self.is_failed = True
        printer.note(f"fleetbus: {message}")


def where_of(query: ObjectQuery) -> str:
    """Where it was looked, as the end of a sentence."""
    parts = [f" in namespace {query.namespace}" if query.namespace else ""]
    parts += [f" in {', '.join(query.clusters)}" if query.clusters else ""]
    return "".join(parts)
