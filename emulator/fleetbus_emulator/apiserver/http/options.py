"""The query parameters of requests, checked."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.encoding.decode import read_delete_options
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.http.exchange import Request, decode_body, integer
from fleetbus_emulator.apiserver.types.object_meta import check_manager, manager_of
from fleetbus_emulator.apiserver.write.delete import DeleteOptions, parse_options
from fleetbus_emulator.apiserver.write.write import Admit, WriteOptions

JsonObject = dict[str, Any]
OPTIONS_KIND = {
    "get": "GetOptions",
    "create": "CreateOptions",
    "update": "UpdateOptions",
    "patch": "PatchOptions",
}


def initial_events(request: Request) -> bool | None:
    """The sendInitialEvents parameter, checked; None if absent."""
    if "sendInitialEvents" not in request.query:
        if request.query.get("resourceVersionMatch"):
            why = (
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents "
                "is provided"
            )
            cause = Cause("resourceVersionMatch", why, "FieldValueForbidden")
            raise errors.invalid_option("ListOptions", cause)
        return None
    if request.query.get("resourceVersionMatch") != "NotOlderThan":
        why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        cause = Cause("resourceVersionMatch", why, "FieldValueForbidden")
        raise errors.invalid_option("ListOptions", cause)
    return request.flag("sendInitialEvents")


def delete_options(request: Request) -> DeleteOptions:
    """Read the parameters of a delete: those of its query count only where there is no body."""
    if request.body.strip():
        body = decode_body(request, "DeleteOptions")
        read_delete_options(body)
        return parse_options({}, body, dry_run=False)
    is_dry_run = dry_run(request, "DeleteOptions")
    grace = integer(request.query, "gracePeriodSeconds")
    return parse_options(dict(request.query), {}, grace, dry_run=is_dry_run)


def dry_run(request: Request, options: str) -> bool:
    """Whether nothing shall be stored."""
    value = request.query.get("dryRun")
    if value in (None, ""):
        return False
    if value != "All":
        why = f'Unsupported value: ["{value}"]: supported values: "All"'
        raise errors.invalid_option(options, Cause("dryRun", why, "FieldValueNotSupported"))
    return True


def write_options(request: Request, verb: str, admit: Admit | None = None) -> WriteOptions:
    """Read the parameters that all writes share."""
    kind = OPTIONS_KIND[verb]
    manager = request.query.get("fieldManager", "")
    check_manager(manager, kind)
    validation = request.query.get("fieldValidation") or "Warn"
    if validation not in ("Ignore", "Warn", "Strict"):
        supported = 'supported values: "", "Ignore", "Warn", "Strict"'
        why = f'Unsupported value: "{validation}": {supported}'
        raise errors.invalid_option(kind, Cause("fieldValidation", why, "FieldValueNotSupported"))
    return WriteOptions(
        manager=manager or manager_of(request.user_agent) or "unknown",
        dry_run=dry_run(request, kind),
        validation=validation,
        force=request.flag("force"),
        admit=admit,
    )
