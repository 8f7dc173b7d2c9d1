"""Admission control for lists: how many run at once, and how much of the stream they may fill."""
