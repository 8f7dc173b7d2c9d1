"""The cure for Pythons whose transports never pause their writer: rule B14."""

from __future__ import annotations

from collections.abc import Iterable

from fleetbus.bus.patches.writelines import is_affected, patch_transport, patch_writelines
from support.rows import each_row


@each_row(
    ("version", "expected"),
    [
        ((3, 11, 7), False),
        ((3, 12, 0), True),
        ((3, 12, 8), True),
        ((3, 12, 9), False),
        ((3, 13, 1), True),
        ((3, 13, 2), False),
        ((3, 14, 0), False),
    ],
)
def test_b14_the_affected_versions_are_known(version: tuple[int, int, int], expected: bool):
    assert is_affected(version) is expected


def test_b14_a_sound_python_is_left_alone():
    assert not patch_writelines((3, 11, 7))


def test_b14_a_mended_transport_pauses_its_writer_once_per_call():
    class Transport:
        def __init__(self) -> None:
            self._buffer: list[bytes] = []
            self.pauses = 0

        def writelines(self, lines: Iterable[bytes]) -> None:
            self._buffer += lines

        def _maybe_pause_protocol(self) -> None:
            self.pauses += 1

    patch_transport(Transport)
    patch_transport(Transport)
    transport = Transport()
    transport.writelines([])
    assert transport.pauses == 0
    transport.writelines([b"a", b"b"])
    assert transport.pauses == 1
