"""Whether there is anything to answer from."""

from __future__ import annotations

from fleetbus.snapshot import SnapshotReader, StoreEmpty


async def read_generation(reader: SnapshotReader) -> str:
    """The id of the store's content.

    An empty store is no empty fleet: whoever reads who is in the fleet asks this first (P13).

    Raises:
        StoreEmpty: the store was emptied, or nobody has set it up yet.
    """
    generation = await reader.generation()
    if generation is None:
        raise StoreEmpty("the snapshot is empty: no projector has filled it yet")
    return generation
