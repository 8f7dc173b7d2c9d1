"""Names of fields whose values are shown to nobody (rule D14)."""

from __future__ import annotations

import re
from typing import Final

SENSITIVE_NAME: Final = re.compile(
    r"pass(word|wd)?|secret|token|credential|api_?key|private", re.IGNORECASE
)
