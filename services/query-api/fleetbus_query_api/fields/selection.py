"""Whether a whole object matches selectors of labels and fields."""

from __future__ import annotations

from typing import Any

from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import Entry
from fleetbus_query_api.answers.render import body_of
from fleetbus_query_api.fields.bodies import decode


def matches_entry(entry: Entry, labels: LabelSelector | None, fields: FieldSelector) -> bool:
    """Whether an object matches.

    Raises:
        UnreadableBody: the body is missing or cannot be decoded, so that nobody knows.
    """
    if not labels and not fields:
        return True
    tree: Any = decode(body_of(entry))
    held: Any = tree.get("metadata", {}).get("labels") or {}
    return fields.matches(tree) and (not labels or labels.matches(held))
