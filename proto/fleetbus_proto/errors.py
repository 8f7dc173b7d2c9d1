"""Errors of names and messages.

ContractError
├── InvalidName        a cluster, token or resource that the contract cannot carry
└── MalformedMessage   bytes that are not a message of this contract, or of an unknown format
    └── TooFarAhead    a number that no clock which is nearly right can have claimed
"""


class ContractError(ValueError):
    """The root of all errors of the wire contract."""


class InvalidName(ContractError):
    """A name that the contract cannot carry; the message says which and why."""


class MalformedMessage(ContractError):
    """A body or header set that no reader of this format understands."""


class TooFarAhead(MalformedMessage):
    """An incarnation number or epoch id from the future: its writer's clock is wrong, or ours.

    Args:
        what: the number's name.
        number: the highest one of the message, a time in ms.
    """

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"its {what} is more than a day ahead")
        self.number = number
