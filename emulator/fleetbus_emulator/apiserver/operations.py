"""The verbs: what each does to the state, and how its outcome is answered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
import yaml

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.encoding import decode
from fleetbus_emulator.apiserver.encoding.go_syntax import duplicate_fields
from fleetbus_emulator.apiserver.encoding.negotiation import (
    MediaType,
    check_list_kind,
    negotiate,
    renderer_for,
)
from fleetbus_emulator.apiserver.errors import ApiError, Cause, NotServed, StrictError
from fleetbus_emulator.apiserver.faults import Expire, PartialList, StaleList
from fleetbus_emulator.apiserver.faults.streams import WatchFault, affects_open_watches
from fleetbus_emulator.apiserver.http.exchange import (
    YAML,
    Request,
    Response,
    decode_body,
    integer,
    json_response,
    parse_apply,
    parse_merge,
    refusal,
    summary,
)
from fleetbus_emulator.apiserver.http.options import delete_options, initial_events, write_options
from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.apiserver.read import lists
from fleetbus_emulator.apiserver.read.watch import Watch, WatchOptions
from fleetbus_emulator.apiserver.write import apply, patches, subresources, write
from fleetbus_emulator.apiserver.write.delete import delete, status_of
from fleetbus_emulator.apiserver.write.target import Target
from fleetbus_emulator.apiserver.write.write import Outcome, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fleetbus_emulator.apiserver.access_control import AccessControl
    from fleetbus_emulator.apiserver.definitions import Definitions
    from fleetbus_emulator.apiserver.faults import Rule
    from fleetbus_emulator.apiserver.request_info import RequestInfo
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
Operation = Callable[["RequestInfo"], "Response | Watch"]
SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS = 1800, 3600
FUTURE_LIST_DELAY = timedelta(seconds=3)


class Operations:
    """The verbs of one cluster.

    Args:
        state: The cluster's memory.
        definitions: Knows which custom types are being deleted.
        bookmark_interval: The distance of bookmarks on watches that asked for them.
        access_control: Admits writes, and issues the tokens of ServiceAccounts.
        random: Chooses how long watches last.
    """

    def __init__(
        self,
        *,
        state: State,
        definitions: Definitions,
        bookmark_interval: timedelta,
        access_control: AccessControl,
        random: Random,
    ) -> None:
        self._state = state
        self._access_control = access_control
        self._definitions = definitions
        self._bookmark_seconds = bookmark_interval.total_seconds()
        self._random = random

    def perform(self, info: RequestInfo) -> Response | Watch:
        """Do what is asked.

        Raises:
            ApiError: It is refused.
        """
        if info.route.subresource:
            return self._subresource_operation(info)(info)
        operations: dict[str, Operation] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }
        if info.verb not in operations or (info.verb, info.request.method) == ("watch", "HEAD"):
            raise errors.method_not_allowed(info.route.plural)
        if len(info.request.body) > write.LARGEST_OBJECT:
            raise write.too_large()
        negotiate(info.request.headers.get("accept", ""))  # refuse before anything is done
        try:
            return operations[info.verb](info)
        except ApiError as error:
            if error.code == HTTPStatus.GATEWAY_TIMEOUT:
                return _after_waiting(error)
            raise

    def _subresource_operation(self, info: RequestInfo) -> Operation:
        name = info.route.subresource
        if name not in info.served.version.subresources:
            raise NotServed
        if name in ("status", "finalize"):
            operations: dict[str, Operation] = {
                "get": self._get,
                "update": self._update,
                "patch": self._patch,
            }
        else:
            special = subresources.Subresources(self._state, self._access_control.accounts)
            return _adapted(special.operations().get(name, {}), info)
        if info.verb not in operations:
            raise errors.method_not_allowed(info.route.plural)
        return operations[info.verb]

    # reading ------------------------------------------------------------------------------------

    def _get(self, info: RequestInfo) -> Response:
        renderer, media_type = renderer_for(info.request, info.served, self._state)
        check_list_kind(media_type, info.served, is_list=False)
        target = info.target()
        lists.check_not_future(self._state, info.request.query)
        stored = self._state.store(target.rtype).get(target.key)
        if stored is None:
            raise errors.not_found(target.rtype, target.name)
        return encoded(200, renderer.one(stored), media_type, info.request)

    def _list(self, info: RequestInfo) -> Response:
        renderer, media_type = renderer_for(info.request, info.served, self._state)
        check_list_kind(media_type, info.served, is_list=True)
        selected = lists.selection(info.served, info.route.namespace, "", info.request.query)
        integer(info.request.query, "timeoutSeconds")
        page = lists.list_page(
            self._state,
            info.served,
            selected,
            info.request.query,
            stale_rv=_stale_rv(info.rules),
            expire_pages=_expires(info.rules, "page"),
        )
        for rule in info.rules:
            if isinstance(rule.action, PartialList):
                page = page.cut(rule.action.share)
        return encoded(200, renderer.many(page.items, page.metadata), media_type, info.request)

    def _watch(self, info: RequestInfo) -> Watch:
        request = info.request
        renderer, _ = renderer_for(request, info.served, self._state)
        if _expires(info.rules, "open"):
            raise errors.expired("too old resource version (injected fault)")
        options = self._watch_options(request)
        selected = lists.selection(
            info.served, info.route.namespace, info.route.name, request.query
        )
        return Watch(
            store=self._state.store(info.served.rtype),
            renderer=renderer,
            selected=selected,
            options=options,
            present_rv=lambda: self._state.rv,
            progress=self._state.progress,
            faults=[WatchFault(rule) for rule in info.rules if affects_open_watches(rule.action)],
        )

    def _watch_options(self, request: Request) -> WatchOptions:
        query = request.query
        initial = initial_events(request)
        text = query.get("resourceVersion", "")
        try:
            version = lists.revision(text) if text else 0
        except ValueError as error:
            raise ApiError(500, None, f"resourceVersion: {error}") from None
        seconds = integer(query, "timeoutSeconds")
        if not seconds:
            seconds = self._random.randint(SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS)
        from_present = initial is True or (version == 0 and initial is None)
        rv = None if from_present else version or self._state.rv
        bookmarks = request.flag("allowWatchBookmarks")
        return WatchOptions(
            rv=rv,
            seconds=float(seconds),
            bookmark_seconds=self._bookmark_seconds if bookmarks else None,
            initial_events_end=initial is True and bookmarks,
        )

    # writing ------------------------------------------------------------------------------------

    def _options(self, info: RequestInfo) -> WriteOptions:
        admit = self._access_control.admission(info.user, info.verb, info.target())
        return write_options(info.request, info.verb, admit)

    def _check_definition(self, info: RequestInfo, name: str) -> None:
        """Refuse another instance of a definition that is being deleted."""
        if self._definitions.is_terminating(info.served.rtype):
            message = "create not allowed while custom resource definition is terminating"
            raise errors.forbidden_object(info.served.rtype, name, message)

    def _create(self, info: RequestInfo) -> Response:
        options = self._options(info)
        body = _object_of(info, options)
        self._check_definition(info, str(mapping(body, "metadata").get("name") or ""))
        return self._written(info, write.create(self._state, info.target(), body, options), options)

    def _update(self, info: RequestInfo) -> Response:
        options = self._options(info)
        body = _object_of(info, options)
        outcome = write.replace_object(self._state, info.target(), body, options)
        return self._written(info, outcome, options)

    def _patch(self, info: RequestInfo) -> Response:
        content_type = info.request.headers.get("content-type", "").partition(";")[0].strip()
        options = self._options(info)
        if content_type == patches.APPLY:
            return self._apply(info, options)
        if "force" in info.request.query:
            why = "Forbidden: may not be specified for non-apply patch"
            raise errors.invalid_option("PatchOptions", Cause("force", why, "FieldValueForbidden"))
        patcher = _in_version(info.served, _patcher(info, content_type))
        try:
            outcome = write.update(self._state, info.target(), patcher, options)
        except StrictError as error:
            raise error.of_patch(info.request.body) from None
        return self._written(info, outcome, options)

    def _apply(self, info: RequestInfo, options: WriteOptions) -> Response:
        if not info.request.query.get("fieldManager"):
            why = "Required value: is required for apply patch"
            cause = Cause("fieldManager", why, "FieldValueRequired")
            raise errors.invalid_option("PatchOptions", cause)
        body, target = parse_apply(info.request.body), info.target()
        if self._state.store(target.rtype).get(target.key) is None:
            self._check_definition(info, target.name)
        outcome = apply.apply(self._state, target, body, options)
        return self._written(info, outcome, options)

    def _written(self, info: RequestInfo, outcome: Outcome, options: WriteOptions) -> Response:
        renderer, media_type = renderer_for(info.request, info.served, self._state)
        status = 201 if outcome.created else 200
        response = encoded(status, renderer.one(outcome.stored), media_type, info.request)
        response.warn(options.warnings)
        return response

    def _delete(self, info: RequestInfo) -> Response:
        target = info.target()
        deleted = delete(self._state, target, delete_options(info.request))
        if deleted.gone and not target.rtype.answers_object:
            return json_response(200, status_of(target, deleted))
        renderer, media_type = renderer_for(info.request, info.served, self._state)
        return encoded(200, renderer.one(deleted.stored), media_type, info.request)

    def _delete_collection(self, info: RequestInfo) -> Response:
        if not info.served.rtype.deletes_collection:
            raise errors.method_not_allowed(info.route.plural)
        renderer, media_type = renderer_for(info.request, info.served, self._state)
        selected = lists.selection(info.served, info.route.namespace, "", info.request.query)
        options = delete_options(info.request)
        page = lists.list_page(self._state, info.served, selected, info.request.query)
        for stored in page.items:
            namespace, name = stored.key
            delete(self._state, Target(info.served, namespace, name), options)
        return encoded(200, renderer.many(page.items, page.metadata), media_type, info.request)


def _after_waiting(error: ApiError) -> Response:
    """The refusal of a future revision, which a server waits for first."""
    response = refusal(error)
    response.delay = FUTURE_LIST_DELAY
    return response


def _adapted(operations: dict[str, subresources.Operation], info: RequestInfo) -> Operation:
    operation = operations.get(info.verb)
    if operation is None:
        raise errors.method_not_allowed(info.route.plural)
    options = write_options(info.request, info.verb)
    return lambda info: operation(info.target(), info.request, options)


def _object_of(info: RequestInfo, options: WriteOptions) -> JsonObject:
    """The body of a create or a PUT; only built-in types may leave out kind and apiVersion."""
    rtype = info.served.rtype
    body = decode_body(info.request, rtype.kind)
    if "fieldValidation" in info.request.query:  # other clients do not pay for the check
        twice = [f'duplicate field "{path}"' for path in duplicate_fields(info.request.body)]
        decode.report_fields(info.served, twice, options.validation, options.warnings)
    if rtype.custom and not (body.get("kind") and body.get("apiVersion")):
        missing = "apiVersion" if body.get("kind") else "Kind"
        text = info.request.body.decode(errors="replace")
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {rtype.kind}): Object "
            f"'{missing}' is missing in '{text}' ({summary(info.request.body)})"
        )
    return body


def _patcher(info: RequestInfo, content_type: str) -> Callable[[JsonObject], JsonObject]:
    body = info.request.body
    if content_type == patches.JSON_PATCH:
        return lambda obj: patches.apply_json_patch(obj, body)
    if content_type == patches.MERGE:
        patch = parse_merge(body)
        return lambda obj: patches.merge(obj, patch)
    if content_type == patches.STRATEGIC and not info.served.rtype.custom:
        patch = parse_merge(body)
        rule = info.served.version.merge_rule
        return lambda obj: patches.strategic(obj, patch, rule)
    raise errors.unsupported_media_type(patches.accepted(custom=info.served.rtype.custom))


def _in_version(
    served: Served, patcher: Callable[[JsonObject], JsonObject]
) -> Callable[[JsonObject], JsonObject]:
    """The patch of an object as its version shows it, where that is not as it is stored."""
    if served.version.conversion is None:
        return patcher
    return lambda obj: write.to_storage(served, patcher(write.new_body(served, obj)))


def _stale_rv(rules: Sequence[Rule]) -> int | None:
    actions = (rule.action for rule in rules)
    return next((a.resource_version for a in actions if isinstance(a, StaleList)), None)


def _expires(rules: Sequence[Rule], where: str) -> bool:
    return any(isinstance(r.action, Expire) and r.action.where == where for r in rules)


def encoded(status: int, body: bytes, media_type: MediaType, request: Request) -> Response:
    """A document in the media type that was asked for."""
    if media_type.media == YAML:
        text = yaml.safe_dump(orjson.loads(body), sort_keys=False)
        return Response(status, text.encode(), content_type=YAML)
    if "pretty" in request.query and request.flag("pretty"):
        body = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2)
    return Response(status, body)
