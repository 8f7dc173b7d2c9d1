"""Controllers as their authors write them: watches, filters, and where they are loaded from."""
