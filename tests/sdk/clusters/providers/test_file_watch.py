"""A change of a file is yielded once the file is completely written."""

from __future__ import annotations

import pathlib
from contextlib import aclosing
from datetime import timedelta

from fleetbus.clusters.providers.file_watch import watch_files


async def test_a_file_that_is_still_being_written_is_not_believed(tmp_path: pathlib.Path):
    path = tmp_path / "clusters.yaml"
    path.write_text("")
    looks = 0

    def look() -> list[pathlib.Path]:
        nonlocal looks
        looks += 1
        if looks in (2, 3, 4):
            path.write_text("x" * looks)
        return [path]

    async with aclosing(watch_files(look, timedelta(0))) as changes:
        await anext(changes)
        assert looks == 1  # the first look is believed at once
        await anext(changes)
        assert looks == 5
        assert path.read_text() == "xxxx"


async def test_a_change_that_is_taken_back_is_no_change(tmp_path: pathlib.Path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("")
    other.write_text("")
    looks = 0

    def look() -> list[pathlib.Path]:
        nonlocal looks
        looks += 1
        return [path, other] if looks == 2 or looks > 4 else [path]

    async with aclosing(watch_files(look, timedelta(0))) as changes:
        await anext(changes)
        await anext(changes)
        assert looks == 6
