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
    Wanted,
    check_form,
    negotiate,
    renderer_for,
)
from fleetbus_emulator.apiserver.errors import ApiError, Cause, NotServed, StrictError
from fleetbus_emulator.apiserver.faults import Expire, PartialList, StaleList
from fleetbus_emulator.apiserver.faults.streams import WatchFault, befalls_open_watches
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
from fleetbus_emulator.apiserver.write.write import Outcome, Target, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fleetbus_emulator.apiserver.definitions import Definitions
    from fleetbus_emulator.apiserver.faults import Rule
    from fleetbus_emulator.apiserver.gate import Gate
    from fleetbus_emulator.apiserver.request_info import Call
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
Operation = Callable[["Call"], "Response | Watch"]
SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS = 1800, 3600
FUTURE_LIST_DELAY = timedelta(seconds=3)


class Operations:
    """The verbs of one cluster.

    Args:
        state: The cluster's memory.
        definitions: Knows which custom types are going.
        bookmark_interval: The distance of bookmarks on watches that asked for them.
        gate: Knows what objects somebody may write, and issues the tokens of ServiceAccounts.
        random: Chooses how long watches last.
    """

    def __init__(
        self,
        *,
        state: State,
        definitions: Definitions,
        bookmark_interval: timedelta,
        gate: Gate,
        random: Random,
    ) -> None:
        self._state = state
        self._gate = gate
        self._definitions = definitions
        self._bookmark_seconds = bookmark_interval.total_seconds()
        self._random = random

    def perform(self, call: Call) -> Response | Watch:
        """Do what is asked.

        Raises:
            ApiError: It is refused.
        """
        if call.route.subresource:
            return self._subresource_operation(call)(call)
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
        if call.verb not in operations or (call.verb, call.request.method) == ("watch", "HEAD"):
            raise errors.method_not_allowed(call.route.plural)
        if len(call.request.body) > write.LARGEST_OBJECT:
            raise write.too_large()
        negotiate(
            call.request.headers.get("accept", "")
        )  # nothing is done for an unanswerable call
        try:
            return operations[call.verb](call)
        except ApiError as error:
            if error.code == HTTPStatus.GATEWAY_TIMEOUT:
                return _after_waiting(error)
            raise

    def _subresource_operation(self, call: Call) -> Operation:
        name = call.route.subresource
        if name not in call.served.version.subresources:
            raise NotServed
        if name in ("status", "finalize"):
            operations: dict[str, Operation] = {
                "get": self._get,
                "update": self._update,
                "patch": self._patch,
            }
        else:
            special = subresources.Subresources(self._state, self._gate.accounts)
            return _adapted(special.operations().get(name, {}), call)
        if call.verb not in operations:
            raise errors.method_not_allowed(call.route.plural)
        return operations[call.verb]

    # reading ------------------------------------------------------------------------------------

    def _get(self, call: Call) -> Response:
        renderer, wanted = renderer_for(call.request, call.served, self._state)
        check_form(wanted, call.served, is_list=False)
        target = call.target()
        lists.check_not_future(self._state, call.request.query)
        stored = self._state.store(target.rtype).get(target.key)
        if stored is None:
            raise errors.not_found(target.rtype, target.name)
        return encoded(200, renderer.one(stored), wanted, call.request)

    def _list(self, call: Call) -> Response:
        renderer, wanted = renderer_for(call.request, call.served, self._state)
        check_form(wanted, call.served, is_list=True)
        selected = lists.selection(call.served, call.route.namespace, "", call.request.query)
        integer(call.request.query, "timeoutSeconds")
        page = lists.list_page(
            self._state,
            call.served,
            selected,
            call.request.query,
            stale_rv=_stale_rv(call.rules),
            expire_pages=_expires(call.rules, "page"),
        )
        for rule in call.rules:
            if isinstance(rule.action, PartialList):
                page = page.cut(rule.action.share)
        return encoded(200, renderer.many(page.items, page.metadata), wanted, call.request)

    def _watch(self, call: Call) -> Watch:
        request = call.request
        renderer, _ = renderer_for(request, call.served, self._state)
        if _expires(call.rules, "open"):
            raise errors.expired("too old resource version (injected fault)")
        options = self._watch_options(request)
        selected = lists.selection(
            call.served, call.route.namespace, call.route.name, request.query
        )
        return Watch(
            store=self._state.store(call.served.rtype),
            renderer=renderer,
            selected=selected,
            options=options,
            present_rv=lambda: self._state.rv,
            progress=self._state.progress,
            faults=[WatchFault(rule) for rule in call.rules if befalls_open_watches(rule.action)],
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

    def _options(self, call: Call) -> WriteOptions:
        admit = self._gate.admission(call.user, call.verb, call.target())
        return write_options(call.request, call.verb, admit)

    def _check_definition(self, call: Call, name: str) -> None:
        """Refuse another instance of a definition that is going."""
        if self._definitions.is_terminating(call.served.rtype):
            message = "create not allowed while custom resource definition is terminating"
            raise errors.forbidden_object(call.served.rtype, name, message)

    def _create(self, call: Call) -> Response:
        options = self._options(call)
        body = _object_of(call, options)
        self._check_definition(call, str(mapping(body, "metadata").get("name") or ""))
        return self._written(call, write.create(self._state, call.target(), body, options), options)

    def _update(self, call: Call) -> Response:
        options = self._options(call)
        body = _object_of(call, options)
        outcome = write.replace_object(self._state, call.target(), body, options)
        return self._written(call, outcome, options)

    def _patch(self, call: Call) -> Response:
        content_type = call.request.headers.get("content-type", "").partition(";")[0].strip()
        options = self._options(call)
        if content_type == patches.APPLY:
            return self._apply(call, options)
        if "force" in call.request.query:
            why = "Forbidden: may not be specified for non-apply patch"
            raise errors.invalid_option("PatchOptions", Cause("force", why, "FieldValueForbidden"))
        patcher = _in_version(call.served, _patcher(call, content_type))
        try:
            outcome = write.update(self._state, call.target(), patcher, options)
        except StrictError as error:
            raise error.of_patch(call.request.body) from None
        return self._written(call, outcome, options)

    def _apply(self, call: Call, options: WriteOptions) -> Response:
        if not call.request.query.get("fieldManager"):
            why = "Required value: is required for apply patch"
            cause = Cause("fieldManager", why, "FieldValueRequired")
            raise errors.invalid_option("PatchOptions", cause)
        body, target = parse_apply(call.request.body), call.target()
        if self._state.store(target.rtype).get(target.key) is None:
            self._check_definition(call, target.name)
        outcome = apply.apply(self._state, target, body, options)
        return self._written(call, outcome, options)

    def _written(self, call: Call, outcome: Outcome, options: WriteOptions) -> Response:
        renderer, wanted = renderer_for(call.request, call.served, self._state)
        status = 201 if outcome.created else 200
        response = encoded(status, renderer.one(outcome.stored), wanted, call.request)
        response.warn(options.warnings)
        return response

    def _delete(self, call: Call) -> Response:
        target = call.target()
        deleted = delete(self._state, target, delete_options(call.request))
        if deleted.gone and not target.rtype.answers_object:
            return json_response(200, status_of(target, deleted))
        renderer, wanted = renderer_for(call.request, call.served, self._state)
        return encoded(200, renderer.one(deleted.stored), wanted, call.request)

    def _delete_collection(self, call: Call) -> Response:
        if not call.served.rtype.deletes_collection:
            raise errors.method_not_allowed(call.route.plural)
        renderer, wanted = renderer_for(call.request, call.served, self._state)
        selected = lists.selection(call.served, call.route.namespace, "", call.request.query)
        options = delete_options(call.request)
        page = lists.list_page(self._state, call.served, selected, call.request.query)
        for stored in page.items:
            namespace, name = stored.key
            delete(self._state, Target(call.served, namespace, name), options)
        return encoded(200, renderer.many(page.items, page.metadata), wanted, call.request)


def _after_waiting(error: ApiError) -> Response:
    """The refusal of a future revision, which a server waits for first."""
    response = refusal(error)
    response.delay = FUTURE_LIST_DELAY
    return response


def _adapted(operations: dict[str, subresources.Operation], call: Call) -> Operation:
    operation = operations.get(call.verb)
    if operation is None:
        raise errors.method_not_allowed(call.route.plural)
    options = write_options(call.request, call.verb)
    return lambda call: operation(call.target(), call.request, options)


def _object_of(call: Call, options: WriteOptions) -> JsonObject:
    """The body of a create or a PUT; only built-in types may leave out kind and apiVersion."""
    rtype = call.served.rtype
    body = decode_body(call.request, rtype.kind)
    if "fieldValidation" in call.request.query:  # whoever does not ask is not made to wait for it
        twice = [f'duplicate field "{path}"' for path in duplicate_fields(call.request.body)]
        decode.complain(call.served, twice, options.validation, options.warnings)
    if rtype.custom and not (body.get("kind") and body.get("apiVersion")):
        missing = "apiVersion" if body.get("kind") else "Kind"
        text = call.request.body.decode(errors="replace")
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {rtype.kind}): Object "
            f"'{missing}' is missing in '{text}' ({summary(call.request.body)})"
        )
    return body


def _patcher(call: Call, content_type: str) -> Callable[[JsonObject], JsonObject]:
    body = call.request.body
    if content_type == patches.JSON_PATCH:
        return lambda obj: patches.apply_json_patch(obj, body)
    if content_type == patches.MERGE:
        patch = parse_merge(body)
        return lambda obj: patches.merge(obj, patch)
    if content_type == patches.STRATEGIC and not call.served.rtype.custom:
        patch = parse_merge(body)
        shape = call.served.version.shape
        return lambda obj: patches.strategic(obj, patch, shape)
    raise errors.unsupported_media_type(patches.accepted(custom=call.served.rtype.custom))


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


def encoded(status: int, body: bytes, wanted: Wanted, request: Request) -> Response:
    """A document in the media type that was asked for."""
    if wanted.media == YAML:
        text = yaml.safe_dump(orjson.loads(body), sort_keys=False)
        return Response(status, text.encode(), content_type=YAML)
    if "pretty" in request.query and request.flag("pretty"):
        body = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2)
    return Response(status, body)
