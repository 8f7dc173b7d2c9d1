"""Tells `fleetbus plan` the settings of the running distributor that decide what is applied."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from fleetbus.errors import StoreError
from fleetbus.store.connection import store_errors
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

_EVERY: Final = timedelta(minutes=1)
_KEPT: Final = 5 * _EVERY
_FAILURE: Final = "the settings of the distributor cannot be read or written"
_REQUIRES_ACCOUNT: Final = "require-service-account"


async def share_settings(redis: Redis, settings: DistributorSettings) -> None:
    """Write them to the store, again and again until cancelled: it may be emptied."""
    value = str(settings.require_service_account).lower()
    while True:
        try:
            with store_errors(_FAILURE):
                async with redis.pipeline(transaction=True) as pipe:
                    pipe.hset(keys.distributor_settings(), _REQUIRES_ACCOUNT, value)
                    pipe.expire(keys.distributor_settings(), _KEPT)
                    await pipe.execute()
        except StoreError as error:
            log.debug("settings_not_shared", error=str(error))
        await asyncio.sleep(_EVERY.total_seconds())


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
