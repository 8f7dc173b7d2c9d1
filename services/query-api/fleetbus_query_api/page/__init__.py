"""The page at `/`: files that a browser runs; what it shows it asks this API for, as its user."""
