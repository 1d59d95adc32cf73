"""Templates: optimised implementations of groups, one folder each, tried in this order."""

from __future__ import annotations

from jitcl.templates.base import Template
from jitcl.templates.conv_cpu.template import ConvCpu

TEMPLATES: tuple[Template, ...] = (ConvCpu(),)

__all__ = ["TEMPLATES", "Template"]
