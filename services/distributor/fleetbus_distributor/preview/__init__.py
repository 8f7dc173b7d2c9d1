"""Previews of the writes of rounds: they run unchanged, on clients that send dry runs."""
