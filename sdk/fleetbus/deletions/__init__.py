"""The budget of deletions that no edit requested, for the whole fleet (rule D8)."""
