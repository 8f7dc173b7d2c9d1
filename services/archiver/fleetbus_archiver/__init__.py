"""The archiver: copies the events of the stream into a folder or a bucket.

One process reads one durable. A message is acknowledged once the chunk that holds it is stored, so
whichever step a crash interrupts, the stream hands over the rest again. What the stream dropped
before it was archived is a hole: counted, logged, and visible in the names of the chunks.
"""
