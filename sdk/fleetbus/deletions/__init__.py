"""The budget of deletions that nobody asked for by an edit, over the whole fleet (rule D8)."""
