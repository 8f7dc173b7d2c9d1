"""Freed memory that the C library returns to the kernel."""

from __future__ import annotations

import platform
import subprocess

import pytest

from support.full import FULL
from support.processes.programs import module


@pytest.mark.longer
def test_w14_freed_pages_of_a_list_go_back_to_the_kernel() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library has other habits")
    assert _kept_mb("fixed") < 10
    if FULL:
        assert _kept_mb() > 40, "the test can no longer see the difference"


def _kept_mb(*how: str) -> int:
    command = module("scripts.freed_memory", *how)
    done = subprocess.run(command, check=True, capture_output=True, timeout=30)
    return int(done.stdout)
