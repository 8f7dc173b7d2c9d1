"""Settings of the query API: environment variables `FLEETBUS_QUERY_API_…`."""

from __future__ import annotations

import pathlib

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class QueryApiSettings(BaseSettings):
    """Where the query API listens, and how much one user may ask."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_QUERY_API_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    host: str = "127.0.0.1"
    """Address to listen on. Only loopback: nobody is asked who they are, so whoever reaches the
    port reads the whole fleet."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    port_file: pathlib.Path | None = None
    """The chosen port is written to this file, for whoever started the process."""

    user_requests_per_second: float = Field(default=20, gt=0)
    """Requests that one user may send per second, over time; more are answered 429. A user is a
    client address, as long as nobody is asked who they are."""

    user_request_burst: int = Field(default=200, ge=1)
    """Requests that a user who was silent may send at once: a page of a browser or a script asks
    a few dozen questions, and then none for a while."""

    user_concurrency: int = Field(default=8, ge=1)
    """Requests of one user that are answered at a time; more are answered 429. A quarter of the
    lists that are answered at a time for all."""
