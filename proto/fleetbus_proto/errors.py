"""Errors of names and messages.

ContractError
├── InvalidName        a cluster, token or resource that the contract cannot carry
└── MalformedMessage   bytes that are no message of this contract, or of an unknown format
    └── TooFarAhead    a number that is further in the future than any clock error allows
"""


class ContractError(ValueError):
    """The root of all errors of the wire contract."""


class InvalidName(ContractError):
    """A name that the contract cannot represent; the message says which and why."""


class MalformedMessage(ContractError):
    """A body or headers that readers of this format cannot decode."""


class TooFarAhead(MalformedMessage):
    """An incarnation number or epoch id from the future: the writer's clock is wrong, or ours.

    Args:
        subject: the name of the number.
        number: the highest one in the message, a time in ms.
    """

    def __init__(self, subject: str, number: int) -> None:
        super().__init__(f"its {subject} is more than a day ahead")
        self.number = number
