"""Captures as emulated clusters: `fleetbus dev up --from` and `fleetbus rehearse`.

`fleet` says which clusters a capture makes, `prepare` turns its objects into what an emulated
cluster can take, and `opening` loads them.
"""
