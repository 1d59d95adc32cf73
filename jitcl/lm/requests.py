"""What clients of `jitcl serve` ask for, in the form of OpenAI's API: checked, and as what
`LanguageModel` takes. What would change the text and is not there is refused, never left out."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl.lm.model import Prompt
from jitcl.lm.writing import Generation

Fields = Mapping[str, Any]

# (whether whole, least, most); `LanguageModel.generate` knows narrower limits
_NUMBERS = {
    "max_tokens": (True, 1, 2**31), "max_completion_tokens": (True, 1, 2**31),
    "seed": (True, 0, 2**63 - 1), "temperature": (False, 0, 100), "top_p": (False, 0, 1),
    "top_k": (True, 0, 2**31), "min_p": (False, 0, 1), "repetition_penalty": (False, 1e-3, 1e3)}
_ASIDE = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_ONLY: dict[str, Any] = {       # the one value that these may have, which changes nothing
    "n": 1, "best_of": 1, "echo": False, "logprobs": False, "frequency_penalty": 0,
    "presence_penalty": 0, "logit_bias": {}, "suffix": "", "tools": [], "tool_choice": "none",
    "functions": [], "modalities": ["text"]}
_STOPS, _STOP_LETTERS = 16, 256         # each is looked for at each token
_INPUTS = 2048                          # of one request for embeddings
COMPLETION_TOKENS = 16                  # where /v1/completions is not told, as OpenAI has it


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, param: str | None = None,
                 code: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers


def error(status: int, message: str, param: str | None = None, code: str | None = None
          ) -> dict[str, Any]:
    """As OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message[:2000], "type": kind, "param": param, "code": code}}


def fields(body: bytes) -> Fields:
    """The object in a request's body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as failure:
        raise Refused(400, f"the body is no JSON: {failure}") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the body is a JSON {type(found).__name__}, wanted an object")
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Asked:
    """A text that is asked for. options: of `LanguageModel.generate`; usage: a stream's last event
    says what it took."""

    prompt: Prompt
    options: dict[str, Any]
    stream: bool
    usage: bool


def asked(said: Fields, chat: bool, most: int) -> Asked:
    """most: tokens that a text may have."""
    name = "messages" if chat else "prompt"
    _known(said, {"model", name, "stop", "stream", "stream_options", "response_format",
                  *_NUMBERS, *_ONLY})
    options = {key: _number(key, said[key]) for key in _NUMBERS if key in said}
    told = options.pop("max_tokens", None)
    count = options.pop("max_completion_tokens", told)
    if count is not None and count > most:
        raise Refused(400, f"{count} tokens are asked for; this server writes {most} at most",
                      "max_tokens")
    options["max_new_tokens"] = count or (most if chat else min(most, COMPLETION_TOKENS))
    if "stop" in said:
        options["stop"] = _stops(said["stop"])
    if "response_format" in said:
        options["form"] = _form(said["response_format"])
    follow = said.get("stream_options", {})
    if not isinstance(follow, dict):
        raise Refused(400, "stream_options: wanted an object", "stream_options")
    prompt = _messages(said.get(name)) if chat else _prompt(said.get(name))
    return Asked(prompt, options, _flag("stream", said.get("stream", False)),
                 _flag("include_usage", follow.get("include_usage", False)))


def inputs(said: Fields) -> tuple[list[Prompt], bool]:
    """(the texts whose vectors are asked for, whether these are wanted as base64)."""
    _known(said, {"model", "input", "encoding_format"})
    given, form = said.get("input"), said.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise Refused(400, f"encoding_format={form!r}: wanted 'float' or 'base64'",
                      "encoding_format")
    if not (isinstance(given, list) and given and isinstance(given[0], (str, list))):
        given = [given]
    texts = [_prompt(g, "input") for g in given]
    if len(texts) > _INPUTS:
        raise Refused(400, f"input has {len(texts)} texts; wanted {_INPUTS} at most", "input")
    return texts, form == "base64"


def _known(said: Fields, names: set[str]) -> None:
    for name in said.keys() - names - _ASIDE:
        raise Refused(400, f"{name!r}: this server knows no such field here", name[:100])
    for name in said.keys() & _ONLY.keys():
        only, given = _ONLY[name], said[name]
        if given != only or isinstance(given, bool) != isinstance(only, bool):      # 0 == False
            raise Refused(400, f"{name}: this server can do {only!r} only", name)


def _number(name: str, value: Any) -> Any:
    whole, least, most = _NUMBERS[name]
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise Refused(400, f"{name}={str(value)[:100]!r}: wanted a {'whole ' if whole else ''}"
                           f"number from {least} to {most}", name)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused(400, f"{name}: wanted true or false", name)
    return value


def _stops(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > _STOPS or any(
            not isinstance(s, str) or not 0 < len(s) <= _STOP_LETTERS for s in found):
        raise Refused(400, f"stop: wanted up to {_STOPS} strings of 1 to {_STOP_LETTERS} letters",
                      "stop")
    return found


def _form(value: Any) -> dict[str, Any] | None:
    """The JSON schema that a text is asked to have; None: any text."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_schema" and isinstance(value.get("json_schema"), dict):
        schema = value["json_schema"].get("schema")
        if isinstance(schema, dict):
            return schema
    elif kind == "json_object":
        return {"type": "object"}
    elif kind == "text":
        return None
    raise Refused(400, "response_format: wanted {'type': 'text'}, {'type': 'json_object'}, or "
                       "{'type': 'json_schema', 'json_schema': {'schema': {...}}}",
                  "response_format")


def _prompt(value: Any, name: str = "prompt") -> Prompt:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str) or isinstance(value, list) and all(type(v) is int for v in value):
        return value
    raise Refused(400, f"{name}: wanted one string, or a list of token ids", name)


def _messages(value: Any) -> Prompt:
    if not isinstance(value, list) or not value or not all(isinstance(m, dict) for m in value):
        raise Refused(400, "messages: wanted a list of objects with 'role' and 'content'",
                      "messages")
    return [{**m, "content": _content(m.get("content"))} for m in value]


def _content(value: Any) -> Any:
    """Text, which may come in parts."""
    if not isinstance(value, list):
        return value
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(
                part.get("text"), str):
            raise Refused(400, "messages: this server reads parts of type 'text' only", "messages")
    return "".join(part["text"] for part in value)


# ---- answers


def choice(chat: bool, text: str, finish: str | None, first: bool | None = None) -> dict[str, Any]:
    """A text, or a piece of one where `first` says whether it is the first."""
    found = {"index": 0, "logprobs": None, "finish_reason": finish}
    if not chat:
        return {**found, "text": text}
    role = {} if first is False else {"role": "assistant"}
    return {**found, "message" if first is None else "delta": {**role, "content": text}}


def usage(took: Generation) -> dict[str, Any]:
    new = len(took.ids)
    return {"prompt_tokens": took.prompt_tokens, "completion_tokens": new,
            "total_tokens": took.prompt_tokens + new,
            "prompt_tokens_details": {"cached_tokens": took.reused_tokens}}


def embedding(index: int, vector: np.ndarray, packed: bool) -> dict[str, Any]:
    """vector: float32 [width]."""
    told = base64.b64encode(vector.astype("<f4").tobytes()).decode() if packed else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": told}
