"""Settings of the distributor: environment variables `FLEETBUS_DISTRIBUTOR_…`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.errors import StoreError
from fleetbus.process.settings import Duration
from fleetbus.store.connection import store_errors
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

_SHARED_EVERY: Final = timedelta(minutes=1)
_FAILURE: Final = "the settings of the distributor cannot be read or written"
_REQUIRES_ACCOUNT: Final = "require-service-account"


class DistributorSettings(BaseSettings):
    """Settings beside the shared ones; durations are written like `30s` or `5m`."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_DISTRIBUTOR_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    namespace: str = NAMESPACE
    """The namespace of fleetbus on the hub, where the records of unjoined clusters are."""

    concurrency: int = Field(default=16, ge=1)
    """Number of MultiClusterResources that are reconciled at a time, each on all its clusters at
    once."""

    timeout: Duration = timedelta(minutes=10)
    """Time limit of one round; long, because a round may write 50 objects to each of 1,000
    clusters, and an interrupted round starts again and reads everything that it wrote."""

    resync: Duration = timedelta(minutes=10)
    """Interval at which each MultiClusterResource is compared with its clusters without any event:
    kinds that are not watched, Secrets for example, would drift unnoticed otherwise (rule D13)."""

    require_service_account: bool = False
    """Refuse MultiClusterResources without spec.serviceAccountName. Otherwise they are applied with
    the distributor's own rights on the clusters, whatever the rights of their author (rule D16)."""

    qps: float = Field(default=100, gt=0)
    """Requests per second to one cluster, over all MultiClusterResources of this process; the hub
    has no limit, because every status is written there (rule D11)."""

    burst: int = Field(default=200, ge=1)
    """Requests to one cluster that may be sent at once after a pause."""

    in_flight: int = Field(default=20, ge=1)
    """Objects of one cluster that this process works on at the same time."""

    status_after: Duration = timedelta(seconds=2)
    """A cluster that takes longer does not delay the status of the others."""


async def share_settings(redis: Redis, settings: DistributorSettings) -> None:
    """Write what a plan depends on to the store, again until cancelled: it may be emptied."""
    value = str(settings.require_service_account).lower()
    while True:
        try:
            with store_errors(_FAILURE):
                async with redis.pipeline(transaction=True) as pipe:
                    pipe.hset(keys.distributor_settings(), _REQUIRES_ACCOUNT, value)
                    pipe.expire(keys.distributor_settings(), 5 * _SHARED_EVERY)
                    await pipe.execute()
        except StoreError as error:
            log.debug("settings_not_shared", error=str(error))
        await asyncio.sleep(_SHARED_EVERY.total_seconds())


async def with_shared(redis: Redis, settings: DistributorSettings) -> DistributorSettings:
    """The settings of a plan, with those of the running distributor where they are known.

    Raises:
        StoreError: the store did not answer.
    """
    with store_errors(_FAILURE):
        stored = await cast("Any", redis.hget(keys.distributor_settings(), _REQUIRES_ACCOUNT))
    if stored is None:
        return settings
    return settings.model_copy(update={"require_service_account": stored == b"true"})
