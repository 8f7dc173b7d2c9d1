"""Settings of the query API: environment variables `FLEETBUS_QUERY_API_…`."""

from __future__ import annotations

import pathlib
from datetime import timedelta
from typing import Final, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.archive import Access, Archive, open_archive
from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.process.settings import Duration, FilePath

_NEVER: Final = timedelta(0)


class QueryApiSettings(BaseSettings):
    """Where the query API listens, who may read what, and the limits of one user."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_QUERY_API_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than loopback need authentication and TLS."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""

    port_file: pathlib.Path | None = None
    """File to which the chosen port is written, for the program that started the process."""

    tls_cert_file: pathlib.Path | None = None
    """PEM file with the server's certificate and its chain, reloaded when it changes."""

    tls_key_file: pathlib.Path | None = None
    """PEM file with the private key of that certificate, without a passphrase."""

    tls_terminated: bool = False
    """Whether a proxy in front, an Ingress or a sidecar, terminates TLS. Clients that bypass the
    proxy send tokens in clear text."""

    authentication: Literal["token", "none"] = "token"
    """`token`: every request needs a bearer token that the hub accepts. `none`: every client that
    reaches the port can read the whole fleet; only on loopback, for development."""

    audience: str = Field(default="fleetbus", min_length=1, max_length=1024)
    """Audience for which tokens must be issued, so that tokens for other services are refused."""

    authority: Literal["hub", "member"] = "hub"
    """Whose RBAC decides what a user may read in a cluster: the hub's, or that cluster's own."""

    clusters_namespace: str = Field(default=NAMESPACE, min_length=1, max_length=63)
    """Namespace of fleetbus on the hub, to which a join writes the kubeconfig of a cluster;
    `clusters.namespace` of the chart."""

    history: bool = True
    """Whether to answer queries about the past, which needs FLEETBUS_NATS_URL: a connection that
    reads the streams of events and changes nothing. The present is served without it."""

    archive_url: str = Field(default="", repr=False)
    """The archive of events, `file:///folder` or `s3://bucket/prefix`: timelines and deletions
    reach back into it. Empty: they reach back to the beginning of the stream."""

    archive_endpoint: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """Address of an S3-compatible server; empty means AWS."""

    archive_region: str = ""
    """Region of the bucket; empty means `AWS_REGION`, or us-east-1."""

    archive_credentials_dir: FilePath = None
    """A folder with the files `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`; by default the
    environment variables of AWS are used, or the role of the pod."""

    archive_ca_file: FilePath = None
    """The CA certificates of the endpoint, in PEM, in addition to those that the machine trusts."""

    token_cache: Duration = Field(default=timedelta(minutes=2), ge=_NEVER, le=timedelta(minutes=2))
    """Time for which a valid token is not reviewed again; a revoked token stays valid for that
    long."""

    allow_cache: Duration = Field(default=timedelta(minutes=5), ge=_NEVER, le=timedelta(minutes=5))
    """Time for which an allowed access is not reviewed again; a revoked right stays valid for that
    long."""

    deny_cache: Duration = Field(default=timedelta(seconds=30), ge=_NEVER, le=timedelta(seconds=30))
    """Time for which a denied access is not reviewed again; a new right may take that long."""

    columns_mebibytes: int = Field(default=64, ge=1, le=65536)
    """MiB for cached values of the fields by which lists are selected, sorted or counted; the least
    recently used are evicted. A field of 100,000 objects takes 10 to 30 MiB. For a resource that
    does not fit, every such query reads all of its objects."""

    user_requests_per_second: float = Field(default=20, gt=0)
    """Sustained requests per second of one user; more get 429. Without authentication a user is a
    client address; with it, the limit also applies to the requests of an address without a known
    token."""

    user_request_burst: int = Field(default=200, ge=1)
    """Requests that an idle user may send at once: a web page or a script sends a few dozen, then
    pauses."""

    user_concurrency: int = Field(default=8, ge=1)
    """Requests of one user in progress at a time; more get 429. A quarter of the lists in progress
    for all users."""

    user_watches: int = Field(default=200, ge=1)
    """Watches that one user may have open at a time; more get 429. A controller or a terminal page
    has a few dozen. They do not count as requests in progress."""

    watches: int = Field(default=1000, ge=1)
    """Watches of all users that one process serves; more get 429. All together may have 64 MiB
    waiting for slow clients, and each 4 MiB."""

    user_watch_requirements: int = Field(default=100, ge=1)
    """Requirements of the label and field selectors of all watches that one user has open, equal
    selectors counted once; more get 429. Each change of an object is compared with all of them."""

    watch_requirements: int = Field(default=1000, ge=1)
    """The same for all users of a process together."""

    @property
    def columns_bytes(self) -> int:
        """Bytes for cached values of fields."""
        return self.columns_mebibytes * 1024**2

    def open_archive(self) -> Archive | None:
        """Open the archive; None if there is none.

        Raises:
            ConfigError: its address or a file is wrong, or the library for it is not installed.
        """
        if not self.archive_url:
            return None
        return open_archive(
            Access(
                self.archive_url,
                endpoint=self.archive_endpoint,
                region=self.archive_region,
                credentials=self.archive_credentials_dir,
                ca_file=self.archive_ca_file,
            )
        )
