"""The latest known state of every watched object, in Redis: one guarded write, many reads."""
