"""The machinery that controllers run on: clock, work queue, object cache, event recorder, loop."""
