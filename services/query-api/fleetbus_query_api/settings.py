"""Settings of the query API: environment variables `FLEETBUS_QUERY_API_…`."""

from __future__ import annotations

import pathlib

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class QueryApiSettings(BaseSettings):
    """Where the query API listens, and the limits of one user."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_QUERY_API_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    host: str = "127.0.0.1"
    """Address to listen on. Only loopback: there is no authentication, so whoever reaches the port
    can read the whole fleet."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    port_file: pathlib.Path | None = None
    """File that the chosen port is written to, for whoever started the process."""

    user_requests_per_second: float = Field(default=20, gt=0)
    """Requests of one user per second, over time; more are answered 429. A user is a client
    address, as there is no authentication."""

    user_request_burst: int = Field(default=200, ge=1)
    """Requests that an idle user may send at once: a web page or a script sends a few dozen, and
    then none for a while."""

    user_concurrency: int = Field(default=8, ge=1)
    """Requests of one user in progress at a time; more are answered 429. A quarter of the lists
    in progress for all users."""
