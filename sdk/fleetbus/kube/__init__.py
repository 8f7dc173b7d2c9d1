"""One API server: requests, lists and watches, and the forms in which it says things."""
