"""An embedded MongoDB for development and tests: what pymongo sees is a replica-set primary of one, kept in memory
and in an append-only file. It must never hold data that somebody would miss."""
