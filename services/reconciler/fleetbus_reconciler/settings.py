"""Settings of the reconciler service: environment variables `FLEETBUS_RECONCILER_…`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.settings import Duration

PositiveDuration = Annotated[Duration, Field(gt=timedelta())]


class ReconcilerSettings(BaseSettings):
    """What this process runs, and how careful the projector is."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_RECONCILER_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    modules: list[str] = Field(default_factory=list)
    """Python files or module names that define controllers, as a JSON list."""

    projector: bool = True
    """Whether this process also runs the projector; at least one process must."""

    fuse_objects: int = Field(default=20, ge=0)
    """Deletions that one relist may find before they are held and looked at again (rule P7)."""

    fuse_percent: int = Field(default=50, ge=0, le=100)
    """… and what share of the resource they may be; both must be passed for a hold."""

    fuse_wait: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=30)
    """How long after the first look a second list must have been made to release a hold."""

    incomplete_wait: PositiveDuration = timedelta(minutes=2)
    """How long an epoch may miss objects that its end marker counted before a new one is asked
    for (rule P5)."""

    stale_after: PositiveDuration = timedelta(seconds=90)
    """A resource not heard of for so long is shown as stale (rule P17)."""
