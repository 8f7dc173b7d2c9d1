"""Controllers as their authors declare them: watches, filters, and how their files are loaded."""
