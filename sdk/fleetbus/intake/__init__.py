"""From a changed object to the requests in the queue of a controller."""
