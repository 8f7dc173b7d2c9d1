"""Content negotiation: the form in which a client accepts an answer.

JSON is the only encoding. YAML and protobuf are refused with 406, unless the client accepts JSON as
well, as every client of Kubernetes does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fleetbus_query_api.kube.problems import NotAcceptableProblem

JSON: Final = "application/json"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
TABLE: Final = "Table"
METADATA: Final = "PartialObjectMetadata"
METADATA_LIST: Final = "PartialObjectMetadataList"
DISCOVERY: Final = "APIGroupDiscoveryList"

Forms = Mapping[str, Sequence[str]]
OBJECT_FORMS: Final[Forms] = dict.fromkeys((TABLE, METADATA, METADATA_LIST), ("v1", "v1beta1"))
"""The values of `as`, with their versions; the first is that of a client that names none."""
DISCOVERY_FORMS: Final[Forms] = {DISCOVERY: ("v2", "v2beta1")}


@dataclass(frozen=True, slots=True)
class AcceptedForm:
    """The chosen form; `kind` is the `as` parameter, empty for the object itself."""

    kind: str = ""
    version: str = ""


def negotiate(accept: str, forms: Forms) -> AcceptedForm:
    """Choose the first clause of an Accept header that can be satisfied, as API servers do.

    Raises:
        NotAcceptableProblem: there is none.
    """
    if not accept.strip():
        return AcceptedForm()
    for clause in accept.split(","):
        if (form := _parse_clause(clause, forms)) is not None:
            return form
    raise NotAcceptableProblem(f"only the following media types are accepted: {JSON}")


def is_typed(accept: str) -> bool:
    """Whether a client decodes answers into types of its own, so that it expects one object.

    Those of Go accept protobuf or, as it were, anything; clients that take objects as they are,
    like `kubectl get`, accept JSON alone or a Table.
    """
    clauses = [clause.strip() for clause in accept.split(",")]
    return any(clause.startswith(PROTOBUF) for clause in clauses) or clauses == [JSON, "*/*"]


def _parse_clause(clause: str, forms: Forms) -> AcceptedForm | None:
    media, *pieces = (piece.strip() for piece in clause.split(";"))
    if media not in (JSON, "*/*", "application/*"):
        return None
    parameters = {
        key.strip(): value.strip() for key, _, value in (p.partition("=") for p in pieces)
    }
    kind = parameters.get("as", "")
    if not kind:
        return AcceptedForm()
    versions = forms.get(kind, ())
    version = parameters.get("v") or (versions[0] if versions else "")
    return AcceptedForm(kind, version) if version in versions else None
