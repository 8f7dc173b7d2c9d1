"""What can be wrong with a name or a message.

ContractError
├── InvalidName        a cluster, token or resource that the contract cannot carry
└── MalformedMessage   bytes that are not a message of this contract, or of an unknown format
"""


class ContractError(ValueError):
    """The root of all errors of the wire contract."""


class InvalidName(ContractError):
    """A name that the contract cannot carry; the message says which and why."""


class MalformedMessage(ContractError):
    """A body or header set that no reader of this format understands."""
