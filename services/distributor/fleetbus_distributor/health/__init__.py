"""The health of one object, from its status (pure)."""
