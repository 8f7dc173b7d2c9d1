"""What the C library keeps of freed memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# A freed block teaches glibc to take the next ones from the heap, where the pins hold them.
_HOARD = """
import sys
from fleetbus_watcher.allocator import return_large_blocks
if sys.argv[1] == "fixed":
    return_large_blocks()

def resident():
    with open("/proc/self/status") as status:
        return int(status.read().partition("VmRSS:")[2].split()[0]) // 1024

del (first := [bytes(b"x") * 3_000_000])[:]
before = resident()
blocks, pins = [], []
for _ in range(20):
    blocks.append(b"x" * 2_700_000)
    pins.append(b"x" * 60_000)
blocks.clear()
print(resident() - before)
"""


def test_w14_freed_pages_of_a_list_go_back_to_the_kernel() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library has other habits")
    assert _kept_mb("fixed") < 10
    assert _kept_mb("as it comes") > 40, "the test can no longer see the difference"


def _kept_mb(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _HOARD, how], check=True, capture_output=True, timeout=30
    )
    return int(done.stdout)
