"""Custom resource definitions: from the CRD object to a served type, and away again.

`form` reads a definition as Go does, `rules` and `schema_rules` tell what is wrong with it,
`served_type` makes a type of it, `lifecycle` serves the type while the definition exists.
"""

from fleetbus_emulator.apiserver.definitions.lifecycle import CLEANUP_FINALIZER, Definitions
from fleetbus_emulator.apiserver.definitions.validation import definition_problems

__all__ = ["CLEANUP_FINALIZER", "Definitions", "definition_problems"]
