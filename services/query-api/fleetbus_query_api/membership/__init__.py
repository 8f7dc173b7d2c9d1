"""Lets clusters join and leave the fleet, with the rights of whoever asks (rule A7)."""
