"""The store's users that docs/store.md tells administrators to make."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[3] / "docs" / "store.md"
PASSWORD = "secret"


def documented_user(name: str, *, controller: str = "shop") -> list[str]:
    """The words of the command that makes a user; the page's controller is `shop`."""
    page = _PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^ACL SETUSER (\S+) (.+)$", page, re.MULTILINE)
    [rights] = [rights for user, rights in commands if user == name]
    rights = rights.replace("PASSWORD", PASSWORD).replace("{q:shop}", f"{{q:{controller}}}")
    return ["ACL", "SETUSER", name, *rights.split()]
