"""Captures: the state of a fleet and its latest events in one file, to be shared and opened again.

`format` says what is in the file, `file` writes it, `reading` reads it, `redact` hides values, and
`gather` collects it all from the snapshot and the stream. What a capture needs of a fleet is read
only; what is done with one, `fleetbus replay`, `dev up --from` and `rehearse`, is elsewhere.
"""
