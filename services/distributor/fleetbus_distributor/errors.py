"""Errors in a MultiClusterResource that are found before anything is sent to a cluster.

DistributorError
├── SpecError          the spec is invalid; every message names its field
├── RenderError        a template cannot be rendered for one cluster
├── CustomizeError     a patch does not fit its object
├── IntentError        the recorded intent is malformed or too large: nothing may be pruned
│   └── ChunkError     a part of it is missing or damaged
└── RolloutError       the recorded rollout, or a revision, cannot be used: nothing may be applied
"""


class DistributorError(Exception):
    """The root of the errors of this service."""


class SpecError(DistributorError):
    """The spec of a MultiClusterResource is not valid.

    Args:
        problems: one sentence each, starting with the field's path (`spec.vars.x: …`).
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RenderError(DistributorError):
    """A template cannot be rendered for this cluster; the message names field and reason."""


class CustomizeError(DistributorError):
    """A customize action does not fit the rendered object; the message names action and path."""


class IntentError(DistributorError):
    """The intent in the status is malformed, or would be too large to store."""


class RolloutError(DistributorError):
    """The rollout in the status is malformed, or a revision cannot be stored."""


class ChunkError(IntentError):
    """A chunk of the intent is missing or damaged; somebody may restore it."""
