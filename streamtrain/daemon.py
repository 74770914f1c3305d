"""Composition (being written)."""
