"""What every scenario starts from."""

from rig_fixtures import open_rig

__all__ = ["open_rig"]
