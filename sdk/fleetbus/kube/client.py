"""A client of one API server: typed errors, bytes or JSON trees, server-side apply, discovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final, Self, TypeAlias

import orjson

from fleetbus import errors
from fleetbus.kube.connection.breaker import ApiBreaker, name_cluster_in_errors
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.http import HttpTransport
from fleetbus.kube.connection.identity import IdentityCheck
from fleetbus.kube.connection.liveness import Liveness
from fleetbus.kube.connection.request_limiter import RequestLimiter
from fleetbus.kube.connection.response import CONNECT_TIMEOUT, Limits, Response
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.kube.connection.transport import MakeTransport, Trust
from fleetbus.kube.discovery import Discovery
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.list_watch.object_lists import FetchPage, all_objects, first_object
from fleetbus.kube.requests import (
    JSON,
    Call,
    acting_as,
    namespace_of,
    path_of,
    selector_query,
    used_path,
    write_query,
)
from fleetbus.kube.responses import (
    NOT_MODIFIED,
    Answer,
    error_from_response,
    is_object_not_found,
    parse_object,
    parse_written,
    read_answer,
    require_deletion,
    require_name,
)
from fleetbus.run.awaited import must_be_awaited
from fleetbus.run.current import current_run, require_lease
from fleetbus_proto.resources import Resource

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as a JSON tree."""

PAGE_SIZE: Final = 500
_BUFFER: Final = 2**18
USER_AGENT: Final = "fleetbus"


class KubeClient:
    """A client of one API server; use it as an async context manager, or call `aclose`.

    Reads that find nothing return None; every other refusal is a `KubeError`.

    Args:
        config: access data; None means the service account of the pod.
        user_agent: shown in the server's logs and in managedFields.
        buffer: roughly how many unread bytes one response may hold; each watch has its own buffer
            while its reader waits (rule W14).
        make_transport: makes another way to the API server than HTTP; `config` is not used then.
    """

    def __init__(
        self,
        config: KubeConfig | None,
        *,
        user_agent: str = USER_AGENT,
        buffer: int = _BUFFER,
        make_transport: MakeTransport | None = None,
    ) -> None:
        self.breaker: ApiBreaker | None = None
        """Refuses requests at once while the server does not answer; None to always try."""
        self.limiter: RequestLimiter | None = None
        """Delays requests beyond a rate; None for no limit."""
        self.verify_connection: Callable[[], Awaitable[None]] | None = None
        """Raises KubeError unless new connections lead to the right cluster; called before anything
        is sent through one (rule W13). None where any cluster will do."""
        self.cluster = ""
        """The name shown in errors, if its owner has set one."""
        self.liveness = Liveness()
        """When the API server last sent anything."""
        self.shows_marks = False
        """Whether reads may return redaction marks in place of values, as in a replay."""
        self.identity_check: IdentityCheck | None = None
        self.make_transport = make_transport
        """Makes this client's way for another client of the cluster; None for HTTP."""
        self._transport = (
            make_transport(Trust(self._verify, self._verified_uid), user_agent)
            if make_transport is not None
            else HttpTransport(config, user_agent=user_agent, buffer=buffer, verify=self._verify)
        )
        self.discovery = Discovery(self.exchange, lambda: self.cluster, self.confirm)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; from now on every request is refused as `Unreachable`."""
        self._transport.refuse()
        try:
            await self.discovery.aclose()
        finally:
            await self.close_connections()

    def use(self, config: KubeConfig | None) -> None:
        """Use other access data for the same API server from now on; open requests continue."""
        self._transport.use(config)

    def verify_identity(self, identity: IdentityCheck) -> None:
        """Let responses count only while the accepted cluster gives them (rule W13)."""
        self.identity_check = identity
        self.verify_connection = identity.verify_new_connection

    async def close_connections(self) -> None:
        """Close every connection, as it may be dead; whoever waits on one gets `Unreachable`."""
        self.liveness.close_responses()
        await self._transport.close()

    # --- objects ------------------------------------------------------------------------------

    @must_be_awaited
    async def get(self, resource: str | Resource, namespace: str, name: str) -> Object | None:
        """Read one object; None only if the server says that it does not exist.

        A type that is not served proves nothing about the object: the type may be unavailable for a
        while, be served in another version, or be misspelt (rule R6).

        Raises:
            NotFound: the server does not serve the type.
        """
        path = used_path(self.cluster, resource, namespace, name)
        try:
            answer = await self.request(Call("GET", path))
        except errors.NotFound as e:
            if not is_object_not_found(e, path):
                raise
        else:
            with name_cluster_in_errors(self.cluster):
                return require_name(parse_object(answer), name)
        await self.confirm()
        return None

    @must_be_awaited
    async def list(
        self,
        resource: str | Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[Object]:
        """Read all objects, in pages, from a consistent state.

        Raises:
            NotFound: the server does not serve the type.
        """
        query = {"limit": str(PAGE_SIZE), **selector_query(label_selector, field_selector)}
        with name_cluster_in_errors(self.cluster):
            objects = await all_objects(self._lister(path_of(resource, namespace)), query)
        await self.confirm()  # objects that are not in the list are absent
        return objects

    @must_be_awaited
    async def has_any(self, resource: str | Resource) -> bool:
        """Whether there is any object of a resource, in any namespace; reads one at most.

        Raises:
            NotFound: the server does not serve the type.
        """
        with name_cluster_in_errors(self.cluster):
            obj = await first_object(self._lister(path_of(resource)), {})
        if obj is None:
            await self.confirm()
        return obj is not None

    def _lister(self, path: str) -> FetchPage:
        return lambda query: self.request(Call("GET", path, query))

    @must_be_awaited
    async def create(
        self,
        resource: str | Resource,
        obj: Object,
        *,
        field_manager: str = USER_AGENT,
        dry_run: bool = False,
    ) -> Object:
        """Create an object.

        Raises:
            AlreadyExists: there is an object of this name.
            NotFound: the namespace or the type is missing.
        """
        path = used_path(self.cluster, resource, namespace_of(obj))
        return await self._write("POST", path, obj, query=write_query(field_manager, dry_run))

    @must_be_awaited
    async def update(
        self, resource: str | Resource, obj: Object, *, field_manager: str = USER_AGENT
    ) -> Object:
        """Replace an object; its resourceVersion, if it has one, is the precondition.

        Raises:
            Conflict: it was changed since it was read.
        """
        path = used_path(self.cluster, resource, namespace_of(obj), obj["metadata"]["name"])
        return await self._write("PUT", path, obj, query=write_query(field_manager))

    @must_be_awaited
    async def update_status(
        self, resource: str | Resource, obj: Object, *, field_manager: str = USER_AGENT
    ) -> Object:
        """Replace the status of an object."""
        path = path_of(resource, namespace_of(obj), obj["metadata"]["name"]) + "/status"
        return await self._write("PUT", path, obj, query=write_query(field_manager))

    @must_be_awaited
    async def patch(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        patch: Object | Sequence[Object],
        *,
        subresource: str = "",
        field_manager: str = USER_AGENT,
    ) -> Object:
        """Patch an object: a dict is a merge patch, a sequence is a JSON patch."""
        path = used_path(self.cluster, resource, namespace, name)
        path += f"/{subresource}" if subresource else ""
        kind = "merge-patch" if isinstance(patch, dict) else "json-patch"
        return await self._write(
            "PATCH",
            path,
            patch,
            query=write_query(field_manager),
            content_type=f"application/{kind}+json",
        )

    @must_be_awaited
    async def apply(
        self,
        resource: str | Resource,
        obj: Object,
        *,
        field_manager: str,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply: own these fields, leave all others alone.

        Raises:
            Conflict: another manager owns a field; `details["causes"]` names manager and field.
        """
        path = used_path(self.cluster, resource, namespace_of(obj), obj["metadata"]["name"])
        query = write_query(field_manager, dry_run) | ({"force": "true"} if force else {})
        return await self._write(
            "PATCH", path, obj, query=query, content_type="application/apply-patch+yaml"
        )

    @must_be_awaited
    async def delete(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> bool:
        """Delete an object; False if it did not exist.

        The propagation policy is always sent, because the default for a Job is Orphan.

        Raises:
            NotFound: the server does not serve the type, which proves nothing about the object.
            Conflict: the object has another uid or resourceVersion.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = Object(apiVersion="v1", kind="DeleteOptions", propagationPolicy=propagation)
        if required := {key: value for key, value in preconditions.items() if value}:
            options["preconditions"] = required
        path = path_of(resource, namespace, name)
        try:
            answer = await self.request(Call("DELETE", path, body=orjson.dumps(options)))
        except errors.NotFound as e:
            if not is_object_not_found(e, path):
                raise
        else:
            with name_cluster_in_errors(self.cluster):
                require_deletion(answer, name)
            return True
        await self.confirm()
        return False

    async def _write(
        self,
        method: str,
        path: str,
        body: Object | Sequence[Object],
        *,
        query: Mapping[str, str],
        content_type: str = JSON,
    ) -> Object:
        call = Call(method, path, query, orjson.dumps(body), content_type)
        answer = await self.request(call)
        with name_cluster_in_errors(self.cluster):
            return parse_written(answer)

    # --- the server ---------------------------------------------------------------------------

    async def kube_system_uid(self, *, alone: bool = False) -> str:
        """The UID of the namespace kube-system of the cluster that answers: its identity.

        Args:
            alone: use a new connection of its own.

        Raises:
            NotFound: the server has no such namespace, so it has no identity.
        """
        call = Call("GET", KUBE_SYSTEM, alone=alone)
        # With `alone` another request is connecting, which the breaker has already admitted.
        ask = self._ask if alone else self._answer
        with acting_as(""):  # the impersonated user need not have the right to read it
            answer = (await ask(call)).body
        with name_cluster_in_errors(self.cluster):
            return str(require_name(parse_object(answer), "kube-system")["metadata"]["uid"])

    async def accepted_uid(self) -> str:
        """The UID of the accepted cluster, which has just answered.

        Raises:
            NotAccepted: another cluster answers.
        """
        return await (
            self.identity_check.verify_anew() if self.identity_check else self.kube_system_uid()
        )

    async def confirm(self, *, within: timedelta = timedelta()) -> None:
        """Confirm that what the responses so far lack is absent: the accepted cluster has answered.

        Args:
            within: a confirmation no older than this is enough.

        Raises:
            NotAccepted: another cluster answers.
        """
        if self.identity_check is not None:
            await self.identity_check.verify_anew(within)

    async def discover(self, api_version: str, kind: str) -> ApiResource | None:
        """The resource that serves a kind; None if the server has none."""
        return await self.discovery.by_kind(api_version, kind)

    # --- requests -----------------------------------------------------------------------------

    async def get_json(self, path: str, *, query: Mapping[str, str] | None = None) -> Object:
        """GET a path and parse the response."""
        answer = await self.request(Call("GET", path, query))
        with name_cluster_in_errors(self.cluster):
            return parse_object(answer)

    async def request(self, call: Call) -> bytes:
        """Send one request and return the body of a 2xx response; raises as `exchange`."""
        return (await self.exchange(call)).body

    async def exchange(self, call: Call) -> Answer:
        """Send one request and return its response; every read and write does.

        Raises:
            KubeError: any other response, one that is too large, or none (`Unreachable`).
            ConfigError: the credentials cannot be loaded.
            LeaseLostError: a run whose lease is lost wants to write (rule R4); nothing was sent.
        """
        run = current_run() if call.method != "GET" else None
        identity = self.identity_check
        if identity is not None:
            await identity.verify()
        with run.trace_write(self.cluster, call.method, call.path) if run else nullcontext():
            answer = await self._answer(call)
        if identity is not None:
            await identity.verify()  # the request may have taken long
        return answer

    async def _answer(self, call: Call) -> Answer:
        """Send a request unless the breaker refuses it, and report its outcome to the breaker."""
        breaker = self.breaker
        if self.limiter is not None:
            await self.limiter.admit()
        try:
            with name_cluster_in_errors(self.cluster):
                if breaker is not None:
                    await breaker.admit(self._probe)
                answer = await self._ask(call)
        except errors.Unreachable as e:
            if breaker is not None and not breaker.is_open:
                breaker.record_failure(e)
            raise
        except errors.KubeError as e:
            if breaker is not None:
                breaker.record_success()
            if self.limiter is not None and isinstance(e, errors.TooManyRequests):
                self.limiter.pause(e.retry_after)
            raise
        if breaker is not None:
            breaker.record_success()
        return answer

    async def _ask(self, call: Call) -> Answer:
        response = await self._open(call, Limits(total=call.within))
        return await read_answer(response, call.limit)

    async def _probe(self) -> None:
        """Request the version with the timeout of a connect, to see whether the server answers."""
        with acting_as(""):
            response = await self.stream("/version", limits=Limits(total=CONNECT_TIMEOUT))
        response.release()

    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        limits: Limits,
    ) -> Response:
        """GET a path and return a 2xx response unread; the caller releases or closes it.

        Raises:
            KubeError: any other response, or none (`Unreachable`).
        """
        return await self._open(Call("GET", path, query, accept=accept), limits)

    async def _open(self, call: Call, limits: Limits) -> Response:
        with name_cluster_in_errors(self.cluster):
            response = self.liveness.take(await self._transport.send(call, limits))
            if response.status < 300 or (call.etag and response.status == NOT_MODIFIED):  # noqa: PLR2004
                return response
            try:
                error = await error_from_response(response)
                response.explain(error)
                raise error
            finally:
                response.release()

    async def _verify(self, method: str) -> bool:
        """Check where new connections lead (rule W13); False if nothing is checked here."""
        if self.verify_connection is None:
            return False
        await self.verify_connection()
        require_lease(method)  # it may have been lost during the check
        return True

    def _verified_uid(self) -> str:
        return self.identity_check.uid if self.identity_check is not None else ""
