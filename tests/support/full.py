"""Whether tests take their full length: `make scenarios` sets `FLEETBUS_TEST_FULL=1`.

A test marked `full` runs there only, one marked `longer` runs there in a longer form.
"""

from __future__ import annotations

import os


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


FULL = _is_set("FLEETBUS_TEST_FULL")
UI = _is_set("FLEETBUS_TEST_UI")
"""Whether tests marked `ui` run: `make test-ui` sets it."""
SHOTS = _is_set("FLEETBUS_TEST_SHOTS")
"""Whether the pictures of the documentation are made anew: `make test-ui SHOTS=1`."""


def examples(most: int) -> int:
    """Return the number of examples of a property: at most this, a fourth in `make test`."""
    return most if FULL else most // 4
