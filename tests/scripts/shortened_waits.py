"""Shortens the waits of the distributor like its campaign; fails where one has moved.

python tests/run.py scripts.shortened_waits
"""

from __future__ import annotations

from faults.distributors.nursery import shorten_waits

if __name__ == "__main__":
    shorten_waits()
