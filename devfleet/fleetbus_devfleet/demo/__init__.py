"""`fleetbus demo`: the promises of fleetbus, shown and verified on a fleet that lives a minute.

Each scene says what it does, does it, and checks what it claims against the API servers themselves.
"""
