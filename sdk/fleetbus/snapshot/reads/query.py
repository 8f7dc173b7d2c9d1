"""The query of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus.kube.selectors import LabelSelector


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Selects objects of one resource in some clusters.

    Attributes:
        clusters: names; an unknown one has no objects.
        resource: the resource key, `core/pods`.
        namespace: only this one; None for all.
        name: only objects of this name.
        labels: only objects whose labels match. The labels of an object without a body are unknown:
            it never matches a required label, see `SnapshotReader.unlabelled`.
        owner: only objects owned by this UID, by ownerReference or owner label; see above.
        limit: objects per page, at least one; None for all.
        max_bytes: of the bodies of a page, at most, if it has more than one object; None for any.
        continue_token: from the page before.
        count: whether to count what remains; this is not known where labels, an owner, or a name
            in all namespaces select the objects, as with Kubernetes.
    """

    clusters: Sequence[str]
    resource: str
    namespace: str | None = None
    name: str | None = None
    labels: LabelSelector | None = None
    owner: str | None = None
    limit: int | None = None
    max_bytes: int | None = None
    continue_token: str = ""
    count: bool = True

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be positive, not {self.limit}")

    @property
    def is_range(self) -> bool:
        """Whether it selects by cluster, namespace and name in one namespace only."""
        return not self.labels and self.owner is None and not self._is_any_namespace

    @property
    def name_anywhere(self) -> str:
        """A name to look for in every namespace; empty if there is none."""
        return (self.name or "") if self._is_any_namespace else ""

    @property
    def _is_any_namespace(self) -> bool:
        return bool(self.name) and self.namespace is None
