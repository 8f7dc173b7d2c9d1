"""States of the past: where they are read, how far back they reach, and pages as of a time."""
