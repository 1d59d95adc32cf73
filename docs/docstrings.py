"""For mkdocstrings: in docstrings a line that begins with `name: ` begins a paragraph."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Parameters(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"\n(?=[a-z_]+: )", "\n\n", obj.docstring.value)
