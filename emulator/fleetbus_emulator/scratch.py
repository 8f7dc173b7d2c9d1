"""Temporary folders that do not pile up.

A killed process cannot remove its folder, so each folder holds a locked file: the lock ends with
its owner, however that ended, and the next start removes every folder whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

PREFIX = "fleetbus-"
_LOCK = ".fleetbus-owner"
# A folder without a lock file was made a moment ago, or its owner died in that moment.
_BIRTH_SECONDS = 60.0


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Generator[Path]:
    """A fresh folder `<tmp>/fleetbus-<purpose>-...`, removed at exit; sweeps stale ones first."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
    try:
        # The file gets its name when it is locked: a sweep in between would take it for stale.
        with (folder / f"{_LOCK}.part").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(lock.name).rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Remove the folders whose owners have ended; returns those removed."""
    return [
        folder
        for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
        if _is_ours(folder) and _remove_if_stale(folder)
    ]


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat(follow_symlinks=False).st_uid == os.getuid() and folder.is_dir()
    except FileNotFoundError:
        return False


def _remove_if_stale(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return _remove_if_abandoned_at_birth(folder)


def _remove_if_abandoned_at_birth(folder: Path) -> bool:
    # Without our lock file it may be anyone's folder: `rmdir` takes it only if it is empty.
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > _BIRTH_SECONDS:
            folder.rmdir()
            return True
    return False
