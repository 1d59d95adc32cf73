"""Templates: optimised implementations of groups, one folder each, tried in this order."""

from __future__ import annotations

from jitcl.templates.base import Template

TEMPLATES: tuple[Template, ...] = ()

__all__ = ["TEMPLATES", "Template"]
