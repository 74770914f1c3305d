"""Artifact stores (GridFS, directory): put, get, verify, prune. A leaf, used by trainer and registry."""
