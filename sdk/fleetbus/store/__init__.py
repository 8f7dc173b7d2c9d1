"""Redis or Valkey: a connection that is fit for the snapshot and the queues."""
