"""Whether a whole object matches selectors of labels and fields."""

from __future__ import annotations

from fleetbus.kube.field_paths import TooManyValues
from fleetbus.kube.json_fields import mapping
from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import Entry
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.responses.render import body_of


def matches_entry(entry: Entry, labels: LabelSelector | None, fields: FieldSelector) -> bool:
    """Whether an object matches.

    Raises:
        UnreadableBody: the body is missing or cannot be decoded, so that nobody knows; or a field
            has too many values.
    """
    if not labels and not fields:
        return True
    tree = decode(body_of(entry))
    try:
        return fields.matches(tree) and (
            not labels or labels.matches(mapping(tree, "metadata", "labels"))
        )
    except TooManyValues as e:
        raise UnreadableBody from e
