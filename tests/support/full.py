"""Whether tests take their full length: `make scenarios` sets `FLEETBUS_TEST_FULL=1`.

A test marked `full` runs there only, one marked `longer` runs there in a longer form.
"""

from __future__ import annotations

import os

FULL = os.environ.get("FLEETBUS_TEST_FULL", "0") not in ("", "0")
