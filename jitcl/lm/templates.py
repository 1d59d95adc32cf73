"""Conversations as text, by a model's chat template, with what transformers gives templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` says, for training, that the model writes what is inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True),
                     lineno=line)


def rendered(template: str, messages: Sequence[Mapping[str, Any]], specials: Mapping[str, str]
             ) -> str:
    """A conversation, up to where the answer begins. Raises what the template does."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols", Generation])
    env.filters["tojson"] = _json
    env.globals.update(raise_exception=_refuse,
                       strftime_now=lambda form: datetime.now().strftime(form))
    return env.from_string(template).render(messages=list(messages), tools=None, documents=None,
                                            add_generation_prompt=True, **specials)


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
          sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
