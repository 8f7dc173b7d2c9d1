"""Every log event that the checks search for is logged by the product under that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Calls of `lines("...")`, which take an event's name, and strings that begin with one.
_READ = re.compile(r"""lines\("(\w+)"\)|startswith\("(\w+_\w+)"\)""")


def test_every_log_event_that_a_check_reads_is_logged_somewhere():
    checks = [path.read_text() for path in Path(__file__).parent.glob("w*/*.py")]
    read = {"".join(names) for text in checks for names in _READ.findall(text)}
    assert len(read) >= 5, "the checks are written in another way"
    folders = (ROOT / "sdk", ROOT / "services")
    product = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert [name for name in sorted(read) if f'"{name}"' not in product] == []
