"""Workarounds for defects and slow paths of nats-py and asyncio, one module each."""
