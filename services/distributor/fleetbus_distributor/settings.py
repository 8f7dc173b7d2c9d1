"""Settings of the distributor: environment variables with the prefix `FLEETBUS_DISTRIBUTOR_`."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.process.settings import Duration


class DistributorSettings(BaseSettings):
    """What the distributor needs beside the shared settings; durations like `30s`, `5m`."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_DISTRIBUTOR_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    namespace: str = "fleetbus-system"
    """Where fleetbus lives on the hub; the records of unjoined clusters are read there."""

    concurrency: int = Field(default=16, ge=1)
    """MultiClusterResources worked on at a time; each one works on all its clusters at once."""

    timeout: Duration = timedelta(minutes=2)
    """For one round; long, because a round may write hundreds of objects to a slow cluster."""

    resync: Duration = timedelta(minutes=10)
    """Each MultiClusterResource is compared this often even if no event came: kinds that no
    watcher follows, Secrets for example, drift unseen otherwise (rule D13)."""

    status_after: Duration = timedelta(seconds=2)
    """A cluster that takes longer does not hold back the status of the others."""
