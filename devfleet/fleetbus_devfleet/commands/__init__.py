"""The commands `fleetbus dev` and `fleetbus demo`."""

from fleetbus_devfleet.commands.app import demo, dev

__all__ = ["demo", "dev"]
