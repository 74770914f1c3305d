"""Structured logs on stderr: key=value for a terminal, JSON lines for a collector; secrets are masked."""
