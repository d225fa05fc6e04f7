"""Pure decisions: no I/O, no asyncio, no clock, no entropy."""
