"""One emulated cluster, without any I/O."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import orjson

from fleetbus_emulator.apiserver.access_control import AccessControl
from fleetbus_emulator.apiserver.auth.access import Access, User, allow_all
from fleetbus_emulator.apiserver.auth.reviews import VIRTUAL_TYPES
from fleetbus_emulator.apiserver.definitions import Definitions
from fleetbus_emulator.apiserver.errors import NotServed
from fleetbus_emulator.apiserver.faults import Compact, Faults, Match, Rule, WatchFault
from fleetbus_emulator.apiserver.faults.streams import affects_open_watches
from fleetbus_emulator.apiserver.faults.unserved import unserved_warning
from fleetbus_emulator.apiserver.handler import Handler
from fleetbus_emulator.apiserver.http.exchange import Request, Response, parse_route
from fleetbus_emulator.apiserver.http.request_log import LoggedRequest, OpenWatch, seen_of
from fleetbus_emulator.apiserver.operations import Operations
from fleetbus_emulator.apiserver.randomness import stream
from fleetbus_emulator.apiserver.read import lists
from fleetbus_emulator.apiserver.read.watch import Watch
from fleetbus_emulator.apiserver.request_info import verb_of
from fleetbus_emulator.apiserver.storage.ground_truth import Commit, GroundTruth
from fleetbus_emulator.apiserver.storage.initial_objects import create_first_objects
from fleetbus_emulator.apiserver.storage.progress import StoreProgress
from fleetbus_emulator.apiserver.storage.restore import restore
from fleetbus_emulator.apiserver.storage.state import Change, State
from fleetbus_emulator.apiserver.types.builtin import BUILTIN_TYPES, NAMESPACES
from fleetbus_emulator.apiserver.types.served import Served, ServedTypes
from fleetbus_emulator.apiserver.write import apply, patches, write
from fleetbus_emulator.apiserver.write.delete import DeleteOptions, delete
from fleetbus_emulator.apiserver.write.target import Target
from fleetbus_emulator.apiserver.write.write import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

JsonObject = dict[str, Any]
MANAGER = "fleetbus-devfleet"
TYPE_NAMES = "like v1/pods or apps/v1/deployments"
BUILTIN = ServedTypes(BUILTIN_TYPES)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Cluster:
    """An emulated Kubernetes cluster: handles requests, remembers everything, misbehaves on demand.

    Usable without sockets. The helpers `create`, `get`, `list`, `update`, `update_status`,
    `apply`, `patch` and `delete` take the same way as requests do (defaults, validation,
    conflicts, ownership) and raise `ApiError` where a request would be refused; faults do not
    apply to them. They name types by a string: `v1/pods`, `apps/v1/deployments`,
    `example.com/v1/widgets`.

    Args:
        name: Names the cluster in the kubeconfig; the uid of kube-system follows from it.
        clock: Gives the time, aware.
        new_uid: Makes uids.
        seed: Seeds generateName suffixes, watch durations and rules with a probability.
        bookmark_interval: The distance of bookmarks on watches that asked for them.
        progress_interval: How often the store reports its progress, without which a bookmark has
            the revision of the last event: 10 minutes on real servers. None for always.
        definition_delay: How long a new custom resource is not served yet; needs a running loop
            unless it is zero.
        event_capacity: Events kept per type; a watch that began earlier is too old.
        history_capacity: Committed writes kept in `history`.
        requests_capacity: Requests kept in `requests`.
        tokens: User names (or Users) by bearer token; None admits everybody as admin, unless
            `authorize` is "rbac".
        authorize: Decides who may do what: a function, or "rbac" for the Roles and bindings of the
            cluster itself. By default everybody but the anonymous may everything.

    Attributes:
        history: The ground truth: every committed write, oldest first.
        requests: The latest requests, oldest first.
        faults: Rules for misbehaviour.
        credentials: The tokens and client certificates it accepts; they may come and go.
        trust: The PEM of whom its clients have to trust; empty while it does not serve HTTPS.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], datetime] = _utc_now,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        seed: int | None = None,
        bookmark_interval: timedelta = timedelta(seconds=60),
        progress_interval: timedelta | None = None,
        definition_delay: timedelta = timedelta(0),
        event_capacity: int = 4_000,
        history_capacity: int = 200_000,
        requests_capacity: int = 10_000,
        tokens: Mapping[str, str | User] | None = None,
        authorize: Callable[[Access], bool] | Literal["rbac"] = allow_all,
    ) -> None:
        self.name = name
        self._definition_delay = definition_delay
        self._state = State(
            clock=clock,
            new_uid=new_uid,
            random=stream(seed, "names"),
            event_capacity=event_capacity,
            history_capacity=history_capacity,
            progress=None if progress_interval is None else StoreProgress(progress_interval),
        )
        self._types = BUILTIN.copy()
        self._definitions = Definitions(self._state, self._types, self._later)
        self._access_control = AccessControl(
            name, state=self._state, served=self._types, tokens=tokens, authorize=authorize
        )
        self._handler = self._make_handler(bookmark_interval, seed)
        self.credentials = self._access_control.credentials
        self.trust = ""
        self.history: deque[Commit] = self._state.history
        self.requests: deque[LoggedRequest] = deque(maxlen=requests_capacity)
        self.faults = self._make_faults(seed)
        self._roll_back_subscribers: list[Callable[[], None]] = []
        self._watches: dict[Watch, OpenWatch] = {}
        self._requests_seen = 0
        create_first_objects(self._state, name)

    def _make_handler(self, bookmark_interval: timedelta, seed: int | None) -> Handler:
        operations = Operations(
            state=self._state,
            definitions=self._definitions,
            bookmark_interval=bookmark_interval,
            access_control=self._access_control,
            random=stream(seed, "watches"),
        )
        return Handler(
            served=self._types, operations=operations, access_control=self._access_control
        )

    def _make_faults(self, seed: int | None) -> Faults:
        return Faults(
            stream(seed, "faults"),
            present_rv=lambda: self._state.rv,
            added=self._apply_to_open_watches,
            removed=self._wake_watches,
        )

    def _later(self, function: Callable[[], None]) -> None:
        if not self._definition_delay:
            function()
            return
        seconds = self._definition_delay.total_seconds()
        asyncio.get_running_loop().call_later(seconds, function)

    # requests -----------------------------------------------------------------------------------

    def match_faults(self, request: Request) -> list[Rule]:
        """The fault rules that apply to a request; to be handed to `handle`."""
        return self.faults.match(seen_of(request)) if self.faults.active else []

    def handle(self, request: Request, rules: Sequence[Rule] = ()) -> Response | Watch:
        """Answer a request. Pass a Watch to `release` when its client has disconnected."""
        if any(isinstance(rule.action, Compact) for rule in rules):
            self.compact()
        self._state.agent = request.user_agent
        try:
            answer = self._handler.handle(request, rules)
        finally:
            self._state.agent = ""
        if isinstance(answer, Watch):
            self._watches[answer] = OpenWatch(answer, seen_of(request), self._state.clock())
        self.log(request, 200 if isinstance(answer, Watch) else answer.status, rules)
        return answer

    def log(self, request: Request, status: int, rules: Sequence[Rule] = ()) -> None:
        """Add a request to `requests`, with the rules that applied to it."""
        route = parse_route(request.path)
        self._requests_seen += 1
        self.requests.append(
            LoggedRequest(
                number=self._requests_seen,
                time=self._state.clock(),
                verb=verb_of(request, route) if route else request.method.lower(),
                method=request.method,
                path=request.path,
                query=request.query,
                user_agent=request.user_agent,
                field_manager=request.query.get("fieldManager", ""),
                status=status,
                faults=tuple(rule.id for rule in rules),
                accept=request.headers.get("accept", ""),
            )
        )

    def release(self, watch: Watch) -> None:
        """Forget a watch whose client has disconnected."""
        watch.release()
        self._watches.pop(watch, None)

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    def list_watches(self) -> Sequence[OpenWatch]:
        """The watches that are open, the oldest first."""
        return tuple(self._watches.values())

    @property
    def truth(self) -> GroundTruth:
        """The log of all committed writes."""
        return self._state.truth

    def close_watches(self) -> None:
        """End every open watch cleanly."""
        for watch in tuple(self._watches):
            watch.close()

    def _apply_to_open_watches(self, rule: Rule) -> None:
        if not affects_open_watches(rule.action):
            return
        for watch, open_watch in self._watches.items():
            if self.faults.hit(rule, open_watch.seen):
                watch.faults.append(WatchFault(rule, watch.sent))
                watch.wake()

    def _wake_watches(self) -> None:
        for watch in self._watches:
            watch.wake()

    @property
    def is_open(self) -> bool:
        """Whether everybody is admitted as admin, without authentication."""
        return self._access_control.is_open

    # in-process ---------------------------------------------------------------------------------

    @property
    def clock(self) -> Callable[[], datetime]:
        """The clock of the cluster."""
        return self._state.clock

    @property
    def resource_version(self) -> int:
        """The revision of the last write."""
        return self._state.rv

    def served(self, gvr: str) -> Served:
        """The type that a string like `apps/v1/deployments` names.

        Raises:
            NotServed: There is none.
        """
        api_version, _, plural = gvr.rpartition("/")
        group, _, version = api_version.rpartition("/")
        served = self._types.find(group, version, plural)
        if served is None:
            near = self._types.closest(gvr)
            hint = f"did you mean {near!r}?" if near else f"types are named {TYPE_NAMES}"
            raise NotServed(f"cluster {self.name} serves no {gvr!r}; {hint}")
        return served

    def unserved_warning(self, match: Match) -> str:
        """A warning about a rule that names something not served now; empty if all is."""
        served: dict[tuple[str, str], frozenset[str]] = {
            (group, plural): frozenset() for group, _, plural, _, _ in VIRTUAL_TYPES
        }
        for rtype in self._types.all():
            subresources = (version.subresources for version in rtype.versions.values())
            served[rtype.group, rtype.plural] = frozenset[str]().union(*subresources)
        return unserved_warning(match, served)

    def gvr_of(self, api_version: str, kind: str) -> str | None:
        """The string that names a kind's type, in the version of its apiVersion; None if unserved.

        For manifests, which name kinds where paths name plurals.
        """
        group, _, version = api_version.rpartition("/")
        rtype = self._types.kind(group, kind)
        if rtype is None or version not in rtype.versions:
            return None
        return f"{api_version}/{rtype.plural}"

    def create(
        self, gvr: str, obj: JsonObject, namespace: str | None = None, *, manager: str = MANAGER
    ) -> JsonObject:
        """Create an object and return it; its metadata may name the namespace instead."""
        served = self.served(gvr)
        body = _typed(served, obj)
        target = Target(served, self._place(served, body, namespace), "")
        options = WriteOptions(manager=manager)
        return self._shown(served, write.create(self._state, target, body, options).stored.obj)

    def get(self, gvr: str, namespace: str | None, name: str) -> JsonObject | None:
        """The object, a copy; None if there is none."""
        served = self.served(gvr)
        stored = self._state.store(served.rtype).get(served.rtype.key(namespace, name))
        return None if stored is None else self._shown(served, stored.obj)

    def list(self, gvr: str, namespace: str | None = None, labels: str = "") -> list[JsonObject]:
        """The objects of a namespace or of all, in key order, as copies."""
        served = self.served(gvr)
        selected = lists.selection(served, namespace, "", {"labelSelector": labels})
        page = lists.list_page(self._state, served, selected, {})
        return [self._shown(served, stored.obj) for stored in page.items]

    def update(
        self, gvr: str, obj: JsonObject, *, subresource: str = "", manager: str = MANAGER
    ) -> JsonObject:
        """PUT the object; a resourceVersion in it is checked."""
        served = self.served(gvr)
        body = _typed(served, obj)
        place = self._place(served, body, None)
        target = Target(served, place, body["metadata"]["name"], subresource)
        options = WriteOptions(manager=manager)
        outcome = write.replace_object(self._state, target, body, options)
        return self._shown(served, outcome.stored.obj)

    def update_status(self, gvr: str, obj: JsonObject, *, manager: str = MANAGER) -> JsonObject:
        """PUT the object's status."""
        return self.update(gvr, obj, subresource="status", manager=manager)

    def apply(
        self, gvr: str, obj: JsonObject, *, manager: str, force: bool = False, subresource: str = ""
    ) -> JsonObject:
        """Apply the object server-side."""
        served = self.served(gvr)
        body = _typed(served, obj)
        place = self._place(served, body, None)
        target = Target(served, place, body["metadata"]["name"], subresource)
        options = WriteOptions(manager=manager, force=force)
        return self._shown(served, apply.apply(self._state, target, body, options).stored.obj)

    def patch(
        self,
        gvr: str,
        namespace: str | None,
        name: str,
        patch: JsonObject,
        *,
        subresource: str = "",
        manager: str = MANAGER,
    ) -> JsonObject:
        """Merge-patch the object."""
        served = self.served(gvr)
        target = Target(served, self._namespace(served, namespace), name, subresource)
        copied = _copied(patch)
        options = WriteOptions(manager=manager)
        outcome = write.update(
            self._state, target, lambda live: patches.merge(live, copied), options
        )
        return self._shown(served, outcome.stored.obj)

    def delete(
        self,
        gvr: str,
        namespace: str | None,
        name: str,
        *,
        policy: str | None = None,
        grace: int | None = None,
    ) -> None:
        """Delete the object, or begin to (finalizers, a pod's grace period)."""
        served = self.served(gvr)
        target = Target(served, self._namespace(served, namespace), name)
        delete(self._state, target, DeleteOptions(policy=policy, grace=grace))

    def restore(self, objects: Iterable[tuple[str, JsonObject]], *, replace: bool = False) -> int:
        """Store complete objects as they are, as from a backup; returns how many.

        Nothing is defaulted or validated; status, owners, managedFields, uids and dates stay. Each
        comes with its type, owners and namespaces first; nobody may change them afterwards.

        Args:
            objects: Types and objects.
            replace: Replace an object that exists, whatever its uid.

        Raises:
            ApiError: One exists, or lacks its namespace; what came before it is stored.
        """
        return restore(self._state, self.served, objects, replace=replace)

    def serves(self, gvr: str) -> bool:
        """Whether there is the type."""
        try:
            self.served(gvr)
        except NotServed:
            return False
        return True

    def names(self, gvr: str) -> list[tuple[str, str]]:
        """Namespace and name of every object of a type, in key order."""
        return list(self._state.store(self.served(gvr).rtype).snapshot().keys)

    def shared(self, gvr: str) -> list[JsonObject]:
        """The objects of a type as they are stored, in key order: never change them.

        Subscribers get the same objects. They are in the storage version, and are not copied.
        """
        snapshot = self._state.store(self.served(gvr).rtype).snapshot()
        return [stored.obj for stored in snapshot.select(None)]

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call back on every committed write, in order, at once; returns the function to stop it.

        The callback runs within the write: it should only enqueue. It must not change the objects.
        """
        self._state.subscribers.append(callback)
        return lambda: self._state.subscribers.remove(callback)

    def subscribe_roll_back(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the cluster is rolled back; returns the function to stop it."""
        self._roll_back_subscribers.append(callback)
        return lambda: self._roll_back_subscribers.remove(callback)

    def _namespace(self, served: Served, namespace: str | None) -> str | None:
        return (namespace or "default") if served.rtype.namespaced else None

    def _place(self, served: Served, body: JsonObject, namespace: str | None) -> str | None:
        meta: JsonObject = body.setdefault("metadata", {})
        return self._namespace(served, namespace or meta.get("namespace"))

    def _shown(self, served: Served, obj: JsonObject) -> JsonObject:
        return write.new_body(served, _copied(obj))

    # faults of the whole cluster ----------------------------------------------------------------

    def compact(self, resource_version: int | None = None, *, watches: bool = True) -> None:
        """Forget the past up to a revision (None: all): older pages and watches are too old.

        Args:
            resource_version: The revision.
            watches: Forget events too. A real server still knows those that etcd has compacted,
                for as long as its watch cache reaches back.
        """
        rv = self._state.rv if resource_version is None else resource_version
        self._state.compact(min(rv, self._state.rv), watches=watches)

    def swap_uid(self, uid: str | None = None) -> str:
        """Become another cluster behind the same address: kube-system gets another uid.

        Every watch ends and the event log is dropped, so that no client can resume; the objects
        stay, for simplicity.

        Args:
            uid: The new uid; None makes one.

        Returns:
            The new uid.

        Raises:
            ValueError: Someone deleted the namespace kube-system.
        """
        old = self._state.store(NAMESPACES).get(("", "kube-system"))
        if old is None:
            raise ValueError("this cluster has no namespace kube-system")
        self.close_watches()
        new = old.copy()
        new["metadata"]["uid"] = uid or self._state.new_uid()
        self._state.put(NAMESPACES, old.key, new, old)
        self.compact()
        return new["metadata"]["uid"]

    @property
    def uid(self) -> str:
        """The uid of the namespace kube-system, the identity of the cluster."""
        namespace = self._state.store(NAMESPACES).get(("", "kube-system"))
        return namespace.obj["metadata"]["uid"] if namespace else ""

    def roll_back(self, resource_version: int) -> None:
        """Return to a past state and revision, as after restoring etcd from a backup.

        Every watch ends, subscribers get no changes for what is undone, and the history keeps what
        really happened.

        Raises:
            ValueError: The event log does not reach back that far.
        """
        self._state.roll_back(resource_version)
        self.close_watches()
        self.faults.forget_events(resource_version)
        self._access_control.reset()
        self._definitions.resync()
        for callback in tuple(self._roll_back_subscribers):
            callback()


def _copied(obj: JsonObject) -> JsonObject:
    copied: JsonObject = orjson.loads(orjson.dumps(obj))
    return copied


def _typed(served: Served, obj: JsonObject) -> JsonObject:
    """A copy with kind and apiVersion, which in-process callers may leave out."""
    return {"apiVersion": served.api_version, "kind": served.rtype.kind, **_copied(obj)}
