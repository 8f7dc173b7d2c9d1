"""The routes of the query API, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from redis.asyncio import Redis

from fleetbus.snapshot import SnapshotReader
from fleetbus_query_api.access.authorise import OpenAccess
from fleetbus_query_api.app import HistorySources, create_app
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.history.runs import RunReads
from fleetbus_query_api.membership.routes import Membership
from fleetbus_query_api.past.connection import HistoryConnection
from fleetbus_query_api.settings import QueryApiSettings
from reference.tables import code, table

_METHODS: Final = ("get", "post", "put", "patch", "delete")


def page() -> str:
    """Write the page."""
    # Nothing is read: only the routes are looked at.
    app = create_app(
        reader=cast("SnapshotReader", None),
        redis=cast("Redis", None),
        settings=QueryApiSettings(),
        access=OpenAccess(),
        authenticator=None,
        tail=cast("FeedTail", None),
        membership=cast("Membership", None),
        history=HistorySources(HistoryConnection(None), cast("RunReads", None)),
    )
    document = app.openapi()
    parts = [
        "# Query API\n",
        f"{document['info']['description'].strip()}\n",
        "The API serves its OpenAPI document at `/openapi.json`.\n",
    ]
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                parts += _operation(method, path, item[method])
    return "\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method.upper()} `{path}`\n"
    yield f"{operation.get('description') or operation.get('summary', '')}\n"
    rows = [_parameter(one) for one in operation.get("parameters", [])]
    if rows:
        yield table(("parameter", "in", "type", "what it is"), rows)
    answers = [(code(s), str(a["description"])) for s, a in operation["responses"].items()]
    yield table(("status", "answer"), answers)


def _parameter(parameter: dict[str, Any]) -> tuple[str, str, str, str]:
    schema = parameter.get("schema", {})
    kind = schema.get("type") or " or ".join(
        str(one.get("type")) for one in schema.get("anyOf", [])
    )
    said = parameter.get("description") or schema.get("description", "")
    is_required = ", required" if parameter.get("required") else ""
    return code(parameter["name"]), parameter["in"], kind + is_required, said
