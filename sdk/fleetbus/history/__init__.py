"""The past of the fleet: what objects were, as far back as the stream of events goes.

Everything is read by direct gets, which need no consumer; what has not changed since is in the
snapshot. Nothing is guessed: an object whose state then is not known is said to be so (rule A9).
"""
