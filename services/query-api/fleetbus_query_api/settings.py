"""Settings of the query API: environment variables `FLEETBUS_QUERY_API_…`."""

from __future__ import annotations

import pathlib

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class QueryApiSettings(BaseSettings):
    """Where the query API listens."""

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
