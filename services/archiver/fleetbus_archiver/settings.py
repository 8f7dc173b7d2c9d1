"""Settings of the archiver: environment variables `FLEETBUS_ARCHIVER_…`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.archive import Access
from fleetbus.process.settings import Duration, FilePath


class ArchiverSettings(BaseSettings):
    """Where the archive is, and how it is written."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_ARCHIVER_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    url: str = Field(repr=False)
    """The archive: `file:///folder`, or `s3://bucket/prefix`."""

    endpoint: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """Address of an S3-compatible server; empty means AWS. `http://` allows plain HTTP."""

    region: str = ""
    """Region of the bucket; empty means `AWS_REGION`, or us-east-1."""

    credentials_dir: FilePath = None
    """A folder with the files `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and perhaps
    `AWS_SESSION_TOKEN`, read again each minute. By default the environment variables of AWS are
    used, or the role of the pod."""

    ca_file: FilePath = None
    """The CA certificates of the endpoint, in PEM, in addition to those that the machine trusts."""

    keep: Annotated[
        Annotated[Duration, Field(ge=timedelta(hours=1))] | None,
        BeforeValidator(lambda value: value or None),
    ] = None
    """Retention of chunks, like `30d`; empty means for ever, or for as long as the lifecycle rules
    of the bucket say."""

    chunk_bytes: int = Field(default=64 * 1024**2, ge=64 * 1024, le=512 * 1024**2)
    """A chunk is written once this many bytes of lines wait, before compression …"""

    chunk_age: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=1))] = (
        timedelta(minutes=5)
    )
    """… or once the last chunk is this old. A quiet fleet gets an empty chunk, which proves that
    nothing happened."""

    @property
    def access(self) -> Access:
        """Address and credentials of the archive."""
        return Access(
            self.url,
            endpoint=self.endpoint,
            region=self.region,
            credentials=self.credentials_dir,
            ca_file=self.ca_file,
        )
