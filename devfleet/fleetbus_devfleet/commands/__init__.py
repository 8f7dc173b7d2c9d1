"""The commands `fleetbus dev`, `fleetbus demo` and `fleetbus rehearse`."""

from fleetbus_devfleet.commands.app import demo, dev
from fleetbus_devfleet.commands.rehearse import rehearse

__all__ = ["demo", "dev", "rehearse"]
