"""Reads the query API over HTTP and joins the pages of a list."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from fleetbus.errors import ConfigError, FleetbusError
from fleetbus.process.file_errors import file_problem
from fleetbus_cli.answer_shapes import misfit, shape_of
from fleetbus_cli.api_token import LOOPBACK, ApiToken, find_token
from fleetbus_cli.api_url import split_api_url
from fleetbus_cli.target import Target

USER_AGENT: Final = "fleetbus"
"""The query API answers it with objects of one name from several clusters, in a watch, too."""
_TIMEOUT_SECONDS: Final = 15
"""Per read; the query API itself takes up to 10 s to refuse for lack of capacity."""
PAGE: Final = 500
"""Items of one request for a list."""
MAX_PAGE: Final = 1000
"""The largest `limit` of the query API."""
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _TOO_MANY_REQUESTS = 400, 401, 403, 429
_UNKNOWN_CA: Final = range(18, 22)
"""The codes of OpenSSL for a chain that leads to no CA that is trusted."""
_ATTEMPTS: Final = 10
_TOKEN_SECONDS: Final = 30
_LONGEST_WAIT_SECONDS: Final = 10


class ApiFailed(FleetbusError):
    """The query API does not answer, or does not have the object or resource.

    Args:
        detail: why.
        status: of the answer; 0 if there was none.
    """

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class _TooManyRequests(ApiFailed):
    """A limit of the query API was reached (429).

    Args:
        detail: which limit.
        retry_after: the Retry-After header.
    """

    def __init__(self, detail: str, retry_after: str) -> None:
        super().__init__(detail)
        seconds = int(retry_after) if re.fullmatch("[0-9]{1,5}", retry_after) else 1
        self.wait_seconds = min(seconds, _LONGEST_WAIT_SECONDS)


class ApiRefused(ConfigError):
    """The query API rejects the query as malformed (400)."""


@dataclass(frozen=True, slots=True)
class Item:
    """One object of the fleet; `tree` is None if the snapshot lacks its body."""

    cluster: str
    namespace: str
    name: str
    tree: dict[str, Any] | None
    degraded: str = ""

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Item:
        """Read an item of a response."""
        tree = cast("dict[str, Any] | None", raw.get("object"))
        named = cast("Mapping[str, Any]", raw if tree is None else tree.get("metadata") or {})
        return cls(
            cluster=str(raw["cluster"]),
            namespace=str(named.get("namespace") or ""),
            name=str(named.get("name") or ""),
            tree=tree,
            degraded=str(raw.get("degraded") or ""),
        )


@dataclass(slots=True)
class Found:
    """A list of objects, with all its pages.

    Attributes:
        resource: group, plural, kind, namespaced and versions of the listed resource.
        freshness: of each cluster, from the last page.
        incomplete: the clusters whose part may be incomplete or stale, on any page.
        as_of: the time of a list of the past; empty for one of the present.
        undetermined: objects of the past of which it is unknown what they were.
        is_cut: whether there are more objects than the limit.
    """

    items: list[Item] = field(default_factory=list[Item])
    resource: Mapping[str, Any] = field(default_factory=dict[str, Any])
    freshness: dict[str, Any] = field(default_factory=dict[str, Any])
    incomplete: list[str] = field(default_factory=list[str])
    as_of: str = ""
    undetermined: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    is_cut: bool = False
    version: str = ""
    """Version of the whole snapshot, before the first object was read: a watch goes on from
    there."""

    def lacks(self, cluster: str) -> bool:
        """Whether nothing is known of a cluster: it may not be in the fleet."""
        return self.freshness.get(cluster, {}).get("state", "unknown") == "unknown"

    @property
    def key(self) -> str:
        """The resource key: `core/pods`."""
        return f"{self.resource['group']}/{self.resource['plural']}"


class ApiClient:
    """A client of the query API.

    Args:
        target: has the address, the token and the CA.
        timeout_seconds: per read.
        attempts: after which a 429 is an error.

    Raises:
        ConfigError: no address is set, or it is invalid.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        attempts: int = _ATTEMPTS,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._url = target.require("api_url").rstrip("/")
        self._target = target
        self._token = ApiToken()
        self._token_read_at = float("-inf")
        parts = split_api_url(self._url)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if parts.hostname in LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy cannot reach our loopback
        if target.ca:
            handlers.append(urllib.request.HTTPSHandler(context=_trust(target.ca)))
        self._opener = urllib.request.build_opener(*handlers)

    def list(self, resource: str, query: Mapping[str, str | Sequence[str]], limit: int) -> Found:
        """List the objects of a resource: the first `limit`, or all if it is 0.

        Raises:
            ApiFailed: no response, or no such resource.
            ApiRefused: the query is malformed.
        """
        listing = Found()
        listing.items.extend(self.each(resource, query, limit, listing))
        return listing

    def each(
        self, resource: str, query: Mapping[str, str | Sequence[str]], limit: int, listing: Found
    ) -> Iterator[Item]:
        """List the objects of a resource one by one, a page at a time.

        Args:
            resource: its name.
            query: the query parameters.
            limit: the most objects; 0 for all.
            listing: gets what the pages say beside the objects.

        Raises: as `list`.
        """
        path = f"/fleet/v1/resources/{urllib.parse.quote(resource)}"
        token, count = "", 0
        while True:
            size = min(PAGE, limit - count) if limit else PAGE
            page_query = {**query, "limit": str(size), **({"continue": token} if token else {})}
            page = self.get(path, page_query)
            token = _add(listing, page)
            for raw in page["items"]:
                count += 1
                yield Item.read(raw)
            if not token or (limit and count >= limit):
                listing.is_cut = bool(token)
                return

    def get(self, path: str, query: Mapping[str, str | Sequence[str]] | None = None) -> Any:
        """Get a path; after a 429 wait as long as the server says and try again.

        Raises:
            ApiFailed: no response, or not found.
            ApiRefused: the query is malformed.
        """
        return self._send("GET", path, query)

    def post_file(self, path: str, query: Mapping[str, str], field: str, content: bytes) -> Any:
        """Post a file as the only field of a form.

        Raises:
            ApiFailed: no response, or refused.
            ApiRefused: the request is malformed.
        """
        boundary = secrets.token_hex(16)
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{field}"'
        body = b"%b\r\n\r\n%b\r\n--%b--\r\n" % (head.encode(), content, boundary.encode())
        form = f"multipart/form-data; boundary={boundary}"
        return self._send("POST", path, query, body=body, content_type=form)

    def delete(self, path: str, query: Mapping[str, str]) -> Any:
        """Delete.

        Raises:
            ApiFailed: no response, or refused.
            ApiRefused: the request is malformed.
        """
        return self._send("DELETE", path, query)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | Sequence[str]] | None,
        *,
        body: bytes | None = None,
        content_type: str = "",
    ) -> Any:
        answer = self._open(path, query, method=method, body=body, content_type=content_type)
        with answer, self._reading():
            document = json.load(answer)
        return self.check(document, shape_of(path))

    def check(self, document: Any, shape: Any) -> Any:
        """Return an answer that has its shape.

        Raises:
            ApiFailed: it is none of the query API.
        """
        where = misfit(document, shape)
        if where is None:
            return document
        part = f"without a valid {where.lstrip('.')}" if where else "of another form"
        raise ApiFailed(
            f"{self._url} is not a fleetbus query API, or one of another version: its answer is"
            f" {part}"
        )

    def lines(
        self,
        path: str,
        query: Mapping[str, str | Sequence[str]] | None = None,
        accept: str = "",
    ) -> Generator[bytes]:
        """Get a path, line by line.

        Args:
            path: of the query API.
            query: the query parameters.
            accept: the Accept header; none if it is empty.

        Raises: as `get`.
        """
        with self._open(path, query, accept=accept) as answer:
            while True:
                with self._reading():
                    line = answer.readline()
                if not line:
                    return
                yield line

    def _open(
        self,
        path: str,
        query: Mapping[str, str | Sequence[str]] | None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        content_type: str = "",
        accept: str = "",
    ) -> Any:
        text = urllib.parse.urlencode(query or {}, doseq=True)
        url = f"{self._url}{path}?{text}" if text else f"{self._url}{path}"
        request = urllib.request.Request(url, body, method=method)  # noqa: S310 -- http or https
        request.add_header("User-Agent", USER_AGENT)
        if content_type:
            request.add_header("Content-Type", content_type)
        if accept:
            request.add_header("Accept", accept)
        api_token = self._find_token()
        if api_token.token:
            request.add_unredirected_header("Authorization", f"Bearer {api_token.token}")
        for _ in range(self._attempts - 1):
            try:
                return self._ask(request, api_token)
            except _TooManyRequests as e:
                time.sleep(e.wait_seconds)
        return self._ask(request, api_token)

    def _find_token(self) -> ApiToken:
        """The token, read anew now and then: a list may take longer than it is valid."""
        if time.monotonic() - self._token_read_at > _TOKEN_SECONDS:
            self._token = find_token(self._target)
            self._token_read_at = time.monotonic()
        return self._token

    def _ask(self, request: urllib.request.Request, token: ApiToken) -> Any:
        with self._reading():
            try:
                return self._opener.open(request, timeout=self._timeout_seconds)
            except urllib.error.HTTPError as e:
                raise _refusal(e, token) from e

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Report what goes wrong on the way."""
        try:
            yield
        except RecursionError as e:
            raise ApiFailed(f"the answer of {self._url} is nested too deeply") from e
        except (OSError, http.client.HTTPException, ValueError) as e:
            reason: object = getattr(e, "reason", None) or e
            file = self._target.home_file("api_url")
            source = f" (an address of {file})" if file else ""
            where = f"the query API at {self._url}{source}"
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise ApiFailed(f"the certificate of {where} {_not_accepted(reason)}") from e
            raise ApiFailed(f"{where} does not answer: {reason}") from e


def _add(listing: Found, page: Mapping[str, Any]) -> str:
    """Note what a page says beside its objects; return its continue token."""
    listing.resource = page["resource"]
    listing.version = listing.version or str(page["resourceVersion"])
    listing.freshness |= page["freshness"]
    listing.incomplete += [name for name in page["incomplete"] if name not in listing.incomplete]
    listing.as_of = str(page.get("asOf", ""))
    listing.undetermined += page.get("undetermined", ())
    return str(page["continue"])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The query API redirects nobody; another server must not get the token."""

    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        """Follow no redirect: the answer is an error."""
        return


def _refusal(error: urllib.error.HTTPError, token: ApiToken) -> FleetbusError:
    with error:
        try:
            answer = json.load(error)
            # A problem, an error below /v1, a Status of Kubernetes.
            detail = str(
                next(answer[key] for key in ("detail", "error", "message") if key in answer)
            )
        except (ValueError, StopIteration, TypeError, OSError):
            detail = f"the query API answered {error.code} {error.reason}"
    if error.code in {_UNAUTHORIZED, _FORBIDDEN}:
        sent = f"{token.source} was sent" if token.token else "no token was sent"
        how = "give --token-file FILE, or set FLEETBUS_API_TOKEN_FILE"
        return ApiFailed(f"{detail} ({sent}; {how})", error.code)
    if error.code == _TOO_MANY_REQUESTS:
        return _TooManyRequests(detail, error.headers.get("Retry-After", ""))
    return ApiRefused(detail) if error.code == _BAD_REQUEST else ApiFailed(detail, error.code)


def _not_accepted(error: ssl.SSLCertVerificationError) -> str:
    why = f"is not accepted: {error.verify_message.rstrip('.')}"
    if error.verify_code not in _UNKNOWN_CA:
        return why
    return f"{why}; set --ca-file or FLEETBUS_API_CA_FILE to the CA that signed it"


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as e:
        why = "no certificate in PEM" if isinstance(e, ssl.SSLError) else file_problem(e)
        raise ConfigError(f"CA file {ca}: {why}") from e
