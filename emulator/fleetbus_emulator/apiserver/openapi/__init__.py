"""OpenAPI: what kubectl needs to validate, apply and explain.

The structure of built-in types comes from the field table (`messages`), that of custom resources
from their definitions.

- `documents`: the requests below /openapi: version 3, one document per group version; version 2,
  one for all.
- `paths`, `schemas`: their two halves.
- `encode`: version 2 in protobuf, the only form in which Go clients ask for it.
"""

from fleetbus_emulator.apiserver.openapi.documents import answer, handles

__all__ = ["answer", "handles"]
