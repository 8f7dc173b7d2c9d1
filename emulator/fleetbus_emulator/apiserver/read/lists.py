"""Lists: selection, pages that stay a snapshot, revisions."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.errors import ApiError, Cause
from fleetbus_emulator.apiserver.http.exchange import integer
from fleetbus_emulator.apiserver.read import selectors
from fleetbus_emulator.apiserver.types.field_errors import forbidden, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.storage.store import Key, Snapshot, Stored
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
INCONSISTENT = -1
MATCHES = ("Exact", "NotOlderThan", "")
LONGEST_REVISION = 20  # digits of 64 bits
PAGE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class Page:
    """The answer of a list."""

    items: list[Stored]
    metadata: JsonObject

    def cut(self, share: float) -> Page:
        """A share of the items, which calls itself complete: a fault."""
        metadata = {**self.metadata, **({"continue": ""} if "continue" in self.metadata else {})}
        metadata.pop("remainingItemCount", None)
        return Page(self.items[: int(len(self.items) * share)], metadata)


@dataclass(frozen=True, slots=True)
class Selection:
    """The namespace, name and selectors of a request for objects of a type."""

    namespace: str | None
    matches: selectors.Predicate | None

    def has(self, key: Key, obj: JsonObject) -> bool:
        """Whether an object is selected."""
        if self.namespace is not None and key[0] != self.namespace:
            return False
        return self.matches is None or self.matches(obj)


def selection(
    served: Served, namespace: str | None, name: str, query: Mapping[str, str]
) -> Selection:
    """Read the selectors of a request."""
    labels = selectors.parse_labels(query.get("labelSelector", ""))
    fields = selectors.parse_fields(query.get("fieldSelector", ""), served)
    both = selectors.both(labels, fields)
    if name:
        both = selectors.both(both, lambda obj: obj["metadata"]["name"] == name)
    return Selection(namespace if served.rtype.namespaced else None, both)


@dataclass(frozen=True, slots=True)
class _Window:
    """The start of a page, and the revision it shows."""

    snapshot: Snapshot
    rv: int
    after: Key | None = None
    limit: int = 0


def list_page(
    state: State,
    served: Served,
    selected: Selection,
    query: Mapping[str, str],
    *,
    stale_rv: int | None = None,
    expire_pages: bool = False,
) -> Page:
    """Answer a list.

    Args:
        state: The cluster.
        served: The type.
        selected: Namespace and selectors.
        query: limit, continue, resourceVersion, resourceVersionMatch.
        stale_rv: A fault: what is served from the watch cache is from this past revision.
        expire_pages: A fault: every continue token is too old.
    """
    limit = max(0, integer(query, "limit") or 0)
    token = query.get("continue", "")
    version = parse_version(query)
    if token:
        if version is not None and query.get("resourceVersion") != "0":
            raise errors.bad_request(
                "specifying resource version is not allowed when using continue"
            )
        window = _continued(state, served, token, limit, expire=expire_pages)
    else:
        stale = None
        if stale_rv is not None and query.get("resourceVersionMatch") != "Exact":
            stale = _stale(state, served, version, stale_rv)
        window = stale or _first(state, served, version, limit, query)
    return _page(served, selected, window)


def _problems(query: Mapping[str, str]) -> Iterator[Cause]:
    """Errors of the parameters of a list."""
    field, match = "resourceVersionMatch", query.get("resourceVersionMatch", "")
    if match and not query.get("resourceVersion"):
        yield forbidden(field, f"{field} is forbidden unless resourceVersion is provided")
    if match and query.get("continue"):
        yield forbidden(field, f"{field} is forbidden when continue is provided")
    if match and match not in MATCHES:
        yield unsupported(field, match, MATCHES)
    if match == "Exact" and query.get("resourceVersion") == "0":
        yield forbidden(field, f'{field} "exact" is forbidden for resourceVersion "0"')
    if "sendInitialEvents" in query:
        yield forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")


def parse_version(query: Mapping[str, str]) -> int | None:
    """The resourceVersion of a list with its match rule checked; None if unset."""
    causes = list(_problems(query))
    if causes:
        raise errors.invalid("ListOptions", "", causes, group="meta.k8s.io")
    text = query.get("resourceVersion", "")
    if not text:
        return None
    try:
        return revision(text)
    except ValueError as error:
        message = f"invalid resource version: resourceVersion: {error}"
        raise errors.bad_request(message) from None


def revision(text: str) -> int:
    """A resourceVersion as a number.

    Raises:
        ValueError: It is none, in the words of Go.
    """
    complaint = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(complaint + "invalid syntax")
    if len(text) > LONGEST_REVISION or int(text) >= 1 << 64:
        raise ValueError(complaint + "value out of range")
    return int(text)


def _first(
    state: State, served: Served, version: int | None, limit: int, query: Mapping[str, str]
) -> _Window:
    store = state.store(served.rtype)
    if version is not None and version > state.rv:
        raise _too_large(version, state.rv)
    if query.get("resourceVersionMatch") == "Exact":
        past = store.at(version or 0)
        if past is None:
            raise errors.expired("The resourceVersion for the provided list is too old.")
        return _Window(past, version or 0, limit=limit)
    # resourceVersion=0 is answered from the watch cache, which knows no pages.
    return _Window(store.snapshot(), state.rv, limit=0 if version == 0 else limit)


def _stale(state: State, served: Served, version: int | None, stale_rv: int) -> _Window | None:
    """The whole list as a watch cache knows it that is behind; None if it does not answer."""
    if version is None:
        return None  # read from the store
    if version > stale_rv:
        raise _too_large(version, stale_rv)
    past = state.store(served.rtype).at(stale_rv)
    return None if past is None else _Window(past, stale_rv)


def check_not_future(state: State, query: Mapping[str, str]) -> None:
    """Refuse to read one object at a revision that the cluster has not reached.

    Raises:
        ApiError: 504, it has not; 400, the revision cannot be read.
    """
    try:
        version = revision(query.get("resourceVersion") or "0")
    except ValueError as error:
        raise errors.bad_request(f"resourceVersion: {error}") from None
    if version > state.rv:
        raise _too_large(version, state.rv)


def _too_large(version: int, present: int) -> ApiError:
    cause = Cause("", "Too large resource version", "ResourceVersionTooLarge").to_dict()
    del cause["field"]
    return ApiError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {version}, current: {present}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )


def _continued(state: State, served: Served, token: str, limit: int, *, expire: bool) -> _Window:
    rv, after = _read_token(token)
    store = state.store(served.rtype)
    if rv == INCONSISTENT:
        return _Window(store.snapshot(), state.rv, after, limit)
    if rv > state.rv:  # of before a backup was restored
        message = "etcdserver: mvcc: required revision is a future revision"
        raise ApiError(500, None, message)
    past = None if expire else store.at(rv)
    if past is None:
        raise errors.expired(PAGE_TOO_OLD, _token(INCONSISTENT, after))
    return _Window(past, rv, after, limit)


def _page(served: Served, selected: Selection, window: _Window) -> Page:
    snapshot, limit = window.snapshot, window.limit
    low, high = snapshot.span(selected.namespace, window.after)
    items: list[Stored] = []
    metadata: JsonObject = {"continue": ""} if served.rtype.custom else {}
    metadata["resourceVersion"] = str(window.rv)
    for index in range(low, high):
        stored = snapshot.lookup(snapshot.keys[index])
        if selected.matches is not None and not selected.matches(stored.obj):
            continue
        items.append(stored)
        if limit and len(items) == limit and index + 1 < high:
            metadata["continue"] = _token(window.rv, stored.key)
            if selected.matches is None:
                metadata["remainingItemCount"] = high - index - 1
            break
    return Page(items, metadata)


def _token(rv: int, after: Key) -> str:
    document = {"v": "meta.k8s.io/v1", "rv": rv, "start": "/".join(after)}
    return base64.urlsafe_b64encode(orjson.dumps(document)).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, Key]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from None
    try:
        document: JsonObject = orjson.loads(raw)
        namespace, _, name = document["start"].partition("/")
        return int(document["rv"]), (namespace, name)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError, AttributeError):
        first = raw[:1].decode("latin-1")
        raise errors.bad_request(
            "invalid continue token: continue key is not valid: "
            f"invalid character '{first}' looking for beginning of value"
        ) from None
