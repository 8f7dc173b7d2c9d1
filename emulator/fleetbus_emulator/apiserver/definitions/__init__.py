"""Custom resource definitions: from the CRD object to a served type, and away again.

`go_type` decodes a definition as Go does, `validation` and `schema_validation` check it,
`served_type` makes a type of it, `lifecycle` serves the type while the definition exists.
"""

from fleetbus_emulator.apiserver.definitions.lifecycle import CLEANUP_FINALIZER, Definitions
from fleetbus_emulator.apiserver.definitions.validation import definition_problems

__all__ = ["CLEANUP_FINALIZER", "Definitions", "definition_problems"]
