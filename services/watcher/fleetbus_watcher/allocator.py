"""Keep the C library from hoarding what a page of a list has taken."""

from __future__ import annotations

import ctypes
from typing import Final

# <malloc.h> of glibc
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 128 * 1024


def return_large_blocks() -> None:
    """Give every large block back to the kernel as soon as it is freed (W14).

    glibc raises its thresholds with each large block that is freed, up to 32 MiB; from then on
    pages of a list are cut from the heap, and what is allocated meanwhile keeps them from ever
    being given back. Fixed thresholds halve what a list of 100,000 objects adds to the watcher.
    Other C libraries have no such thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _LARGE)
