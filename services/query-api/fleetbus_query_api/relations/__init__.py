"""Answers how objects belong together: names, owners and children, in all clusters."""
