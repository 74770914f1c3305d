"""Every Prometheus metric of the project, once, with its help text. Units are in the names."""

from __future__ import annotations
