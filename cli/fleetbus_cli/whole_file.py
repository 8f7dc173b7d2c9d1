"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path, *, replaces: bool) -> Generator[IO[bytes]]:
    """Write a file that takes its name when the block has ended, for its owner's eyes only.

    Nothing remains of one whose block fails.

    Args:
        path: of the file; its folder exists.
        replaces: whether it may take the place of a file that exists.

    Raises:
        FileExistsError: a file came meanwhile that it may not replace.
        OSError: the file cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            temporary.replace(path)
        else:
            _place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _place(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, it never replaces a file that came meanwhile
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links; the rename must do there
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)
