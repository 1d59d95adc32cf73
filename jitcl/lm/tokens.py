"""Text to tokens and back, conversations to text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitcl.errors import InputError, ModelError
from jitcl.lm.extra import library

Message = Mapping[str, Any]


class Tokenizer:
    """A tokenizer of the library `tokenizers`, and the template for conversations, if there is one.

    specials: what the template knows by name (`bos_token`, ...).
    """

    def __init__(self, tokenizer: Any, template: str | None, specials: Mapping[str, str],
                 place: str) -> None:
        self.tokenizer, self.template, self.specials = tokenizer, template, specials
        self.place = place

    def row(self) -> list[Any]:
        """As JSON values."""
        return [self.tokenizer.to_str(), self.template, dict(self.specials)]

    @staticmethod
    def of_row(row: list[Any], place: str) -> Tokenizer:
        """What `row` wrote."""
        lib, (words, template, specials) = library("tokenizers", "text and tokens"), row
        return Tokenizer(lib.Tokenizer.from_str(words), template, specials, place)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Tokens; with those that begin or end a text, where the model has any and `special`."""
        if not isinstance(text, str):
            raise InputError(f"the text is of {type(text).__name__}: wanted a str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text has half of a character at {error.start}: {error.reason}"
                             ) from None
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        try:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        except (TypeError, OverflowError) as error:
            raise InputError(f"cannot tell the text of {str(ids)[:80]}: {error}\n  Pass token ids."
                             ) from None

    def stream(self) -> Any:
        """What gives text for tokens one by one, once its letters are whole."""
        decoders = library("tokenizers.decoders", "text of tokens")
        return decoders.DecodeStream(skip_special_tokens=True)

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation, up to where the answer begins."""
        for m in messages:
            if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or (
                    not isinstance(m.get("content"), str)):
                raise InputError(f"message {m!r}: wanted a dict with 'role' and 'content', strings")
        if self.template is None:
            raise InputError(f"{self.place}: has no chat template: it was not made for "
                             "conversations\n  Pass a str to go on from.")
        from jitcl.lm.templates import rendered  # who has no conversations needs no jinja2

        try:
            text = rendered(self.template, messages, self.specials)
        except Exception as error:              # noqa: BLE001 - the template's code may raise any
            raise InputError(f"{self.place}: the chat template refuses these messages: {error}"
                             ) from None
        return self.encode(text, special=False)


def of_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder; None where it has none. Raises ModelError."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    lib = library("tokenizers", "reading tokenizer.json")
    try:
        tokenizer = lib.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:              # noqa: BLE001 - the library raises nothing narrower
        raise ModelError(f"{file}: is no tokenizer: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    said = {**read_json(folder / "special_tokens_map.json", {}),
            **read_json(folder / "tokenizer_config.json", {})}
    template = said.get("chat_template")
    if isinstance(template, list):          # several by name
        template = {t.get("name"): t.get("template") for t in template
                    if isinstance(t, dict)}.get("default")
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        template = beside.read_text(encoding="utf-8")
    specials = {}
    for name, value in said.items():
        if name.endswith("_token"):
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                specials[name] = value
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder / 'tokenizer_config.json'}: 'chat_template' is of "
                         f"{type(template).__name__}: wanted a str, or a list of them by name")
    return Tokenizer(tokenizer, template, specials, str(folder))


def read_json(file: Path, default: Any = None) -> dict[str, Any]:
    """An object in a JSON file; `default` where there is no file. Raises ModelError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if default is not None:
            return dict(default)
        raise ModelError(
            f"{file.parent}: has no {file.name}\n  Pass a folder as Hugging Face's "
            "save_pretrained() writes it, or a .gguf file.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file}: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{file}: holds a {type(found).__name__}, wanted an object")
    return found
