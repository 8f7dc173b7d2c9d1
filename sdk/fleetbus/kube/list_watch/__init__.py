"""Lists and watches of an API server, read as bytes: pages, events, reconnects."""
