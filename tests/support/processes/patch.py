"""Patches of product code, in the processes of a campaign: product code has no switches."""

from __future__ import annotations

import inspect
from typing import Any


def replace(owner: object, name: str, value: Any) -> Any:
    """Replace an attribute of a module or a class; answers what it was.

    Raises:
        AttributeError: there is none of that name, so the patch would change nothing.
    """
    before = inspect.getattr_static(owner, name)
    setattr(owner, name, value)
    return before
