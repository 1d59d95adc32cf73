"""A decoder as a graph: what architectures are declared with, and the source that a model of jitcl
is compiled from.

    x [texts * rows, width]  ->  blocks, each with keys and values of the past  ->  norm  ->  logits

The graph reads embedded tokens, cosines and sines of their positions, and keys and values with room
for `past` tokens of each text, a tensor a layer: a token's keys, behind them its values. It gives
those of the new tokens alone, so that no cache goes to and fro. Places that no token has are FREE,
and rows that a text does not fill come last: causality hides both. Products are of all texts' rows
at once, attention is each text's own.
"""

from __future__ import annotations

import copy
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.types import Sym, TensorType
from jitcl.lm.rotary import Rotary, rotary
from jitcl.lm.settings import Settings
from jitcl.lm.weights import Weights, wants
from jitcl.runtime.cache import DeviceCache, Key, code_version
from jitcl.runtime.digests import digest
from jitcl.runtime.source import Tensor

if TYPE_CHECKING:
    from jitcl.ops.builder import GraphBuilder  # a warm start needs no ops

ROOM = 256                                  # tokens by which the cache of keys and values grows
FREE = np.iinfo(np.int32).max               # the position of a place in the cache without a token
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "gelu_new", "gelu")


class Decoder(ABC):
    """What all architectures have in common, with Llama's names. One of its own says `block`."""

    classes: tuple[str, ...] = ()           # names in config.json's "architectures"
    embedding, last_norm, head = "model.embed_tokens.weight", "model.norm", "lm_head"
    stem = "model.layers.{}."               # names of a layer's weights begin with it
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)     # ends of names that nothing reads
    # By model_type: what transformers takes for keys that a configuration leaves out, and that
    # weights do not tell. null is a value there.
    defaults: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, config: Settings, weights: Weights) -> None:
        missing = self.defaults.get(str(config.get("model_type")), {})
        self.config, self.weights = c, w = (
            Settings({**missing, **config.values}, config.place), weights)
        self.layers, self.heads = c.whole("num_hidden_layers"), c.whole("num_attention_heads")
        if self.layers > len(w.names()):
            raise ModelError(f"{c.place}: 'num_hidden_layers' is {self.layers}, but there are "
                             f"{len(w.names())} weights")
        self.width = c.whole("hidden_size")
        self.shared = c.whole("num_key_value_heads", self.heads)
        self.head_size = c.whole("head_dim", self.width // self.heads)
        self.context = c.whole("max_position_embeddings", 2048)
        self.epsilon = c.number("rms_norm_eps", 1e-6)
        self.vocabulary = c.whole("vocab_size")
        wants(w, self.embedding, (self.vocabulary, self.width))
        self.tied = c.get("tie_word_embeddings", self.ties) or f"{self.head}.weight" not in w
        self.interleaved = c.only("rope_interleaved", False, True)   # as GGUF has Llama's heads
        self.windows = self._windows()
        self.rotaries = self._rotaries()
        self.context = min([self.context, *(r.holds for r in self.rotaries.values() if r.holds)])

    ties = False                            # where the configuration says nothing

    # ---- what architectures may say otherwise

    @abstractmethod
    def block(self, b: Layer, x: Node) -> Node:
        """A layer: x [rows, width] and what it becomes."""

    def norm(self, b: Layer, x: Node, name: str) -> Node:
        """The norm `name`, over the last axis."""
        return b.g.rms_norm(x, b.weight(f"{name}.weight"), axis=-1, epsilon=self.epsilon)

    def embed(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Embedded tokens [rows, width], float32."""
        return self.weights.rows(self.embedding, ids)

    def logits(self, b: Layer, x: Node) -> Node:
        return x

    def activation(self) -> str:
        return str(self.config.only("hidden_act", *ACTIVATIONS))

    def _rotaries(self) -> dict[str, Rotary]:
        """By name; `rotary_of` says which a layer has."""
        return {"": rotary(self.config, self.head_size)}

    def rotary_of(self, layer: int) -> str | None:
        return ""

    def _windows(self) -> list[int]:
        """How many tokens each layer looks back, itself among them; 0: all."""
        c = self.config
        size, kinds = c.get("sliding_window"), c.get("layer_types")
        if size in (None, 0):               # 0: as GGUF files say none
            return [0] * self.layers
        if kinds is None:
            kinds = ["sliding_attention" if self.slides(k) else "" for k in range(self.layers)]
        if len(kinds) != self.layers:
            raise ModelError(f"{c.place}: 'layer_types' has {len(kinds)} entries for {self.layers} "
                             "layers")
        return [c.whole("sliding_window") if kind == "sliding_attention" else 0 for kind in kinds]

    def slides(self, layer: int) -> bool:
        """Whether a layer has a window where the configuration doesn't list them."""
        return False

    # ---- the graph

    def graph(self, tensors: Sequence[Tensor], give: str, shapes: Mapping[str, tuple[int, ...]]
              ) -> Graph:
        """What `give` says of `inputs(...)`: "next" the logits behind row `row`, "logits" those of
        all rows, "hidden" what comes before them."""
        from jitcl.ops.builder import GraphBuilder

        g = GraphBuilder()
        inputs = {t.name: graph_input(t.name, TensorType(t.dtype, shapes[t.name]))
                  for t in tensors}
        outputs: list[tuple[str, Node]] = []
        x = inputs["x"]
        for k in range(self.layers):
            b = Layer(self, g, inputs, k)
            x = self.block(b, x)
            outputs += [(f"new.{k}", new) for new in b.made]
        if give == "next":
            x = g.gather(x, inputs["row"], axis=0)
        b = Layer(self, g, inputs, -1)
        y = self.norm(b, x, self.last_norm)
        if give != "hidden":
            name = self.embedding if self.tied else f"{self.head}.weight"
            y = self.logits(b, b.product(y, name))
        return Graph("decoder", tuple(inputs.values()),
                     ((("hidden" if give == "hidden" else "logits"), y), *outputs))

    def inputs(self, rows: int, give: str, kind: str, texts: int = 1) -> list[Tensor]:
        """What the graph of `rows` new tokens of each of `texts` reads. kind: dtype of keys and
        values."""
        past, keys = Sym(f"{ROOM} * rooms"), Sym(f"{ROOM} * rooms + {rows}")
        found = [Tensor("x", "f32", (texts * rows, self.width))]
        for name, turned in self.rotaries.items():
            found += [Tensor(f"{part}{name}", "f32", (texts, rows, len(turned.frequencies)))
                      for part in ("cos", "sin")]
        found += [Tensor("query", "i32", (texts, rows, 1)), Tensor("keys", "i32", (texts, keys))]
        if give == "next":
            found.append(Tensor("row", "i32", (1,)))
        return found + [Tensor(f"past.{k}", kind, (texts, past, 2 * self.shared, self.head_size))
                        for k in range(self.layers)]

    def feeds(self, parts: Sequence[Sequence[int]], past: Sequence[int], rows: int, room: int
              ) -> dict[str, np.ndarray]:
        """What the graph reads beside keys and values: tokens of each text in the first of its
        `rows`, behind `past` of them in a cache with room for `room`."""
        tokens = Tokens.of(parts, past, rows)
        return {"x": self.embed(tokens.ids, tokens.positions), **self.places(past, rows, room)}

    def places(self, past: Sequence[int], rows: int, room: int) -> dict[str, np.ndarray]:
        """That without the embedded tokens."""
        first = np.array(past)[:, None]
        positions = first + np.arange(rows)
        found: dict[str, np.ndarray] = {}
        for name, turned in self.rotaries.items():
            found[f"cos{name}"], found[f"sin{name}"] = turned.at(positions)
        found["query"] = positions.astype(np.int32)[..., None]
        places = np.arange(room)
        found["keys"] = np.concatenate(
            [np.where(places < first, places, FREE), positions], axis=1, dtype=np.int32)
        return found

    def pieces(self, ids: Sequence[int], most: int, root: Path
               ) -> tuple[Any, list[dict[str, np.ndarray]]]:
        """A source that takes pieces of a text of up to `most` tokens, without a past, and what it
        is fed: all pieces are of one length, so that the last one may begin in the one before."""
        rows = min(len(ids), most, self.context)
        source = DecoderSource(self, rows, "logits", "f32", root)
        past = {t.name: np.zeros([0 if isinstance(d, Sym) else d for d in t.shape], np.float32)
                for t in source.signature()[0] if t.name.startswith("past.")}
        starts = [min(first, len(ids) - rows) for first in range(0, len(ids), rows)]
        return source, [{**self.feeds([ids[s:s + rows]], [0], rows, 0), **past} for s in starts]

    def check(self, cache: DeviceCache | None = None) -> None:
        """ModelError or ShapeError where weights and configuration do not fit: a weight that is
        missing, of another shape, or that nothing reads (it would be another model). What `cache`
        knows to fit is not checked again."""
        if cache is None:
            self._check()
            return
        source = DecoderSource(self, 1, "logits", "f32", cache.cache.root)
        key = Key({"model": source.digest, "weights": "checked", "code": code_version()},
                  f"weights of {source.name}")
        if cache.get("model", key) is None:
            self._check()
            cache.put("model", key, b"known")

    def _check(self) -> None:
        typed = copy.copy(self)
        typed.weights = cast(Weights, _Types(self.weights))
        tensors = self.inputs(1, "logits", "f32")
        shapes = {t.name: tuple(0 if isinstance(d, Sym) else d for d in t.shape) for t in tensors}
        try:
            typed.graph(tensors, "logits", {**shapes, "keys": (1, 1)})
        except ShapeError as error:
            told = str(error).removeprefix(f"{self.weights.place}: ")
            raise ShapeError(
                f"{self.weights.place}: weights do not fit the configuration ({self.heads} heads "
                f"of {self.head_size}, {self.shared} for keys and values, width {self.width}): "
                f"{told}") from None
        known = {*self.weights.read, f"{self.head}.weight" if self.tied else ""}
        unread = sorted(n for n in self.weights.names() - known if not n.endswith(self.ignored))
        if unread:
            more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
            raise UnsupportedError(
                f"{self.weights.place}: {type(self).__name__} has no use for weight "
                f"{', '.join(map(repr, unread[:3]))}{more}: this is a variant that jitcl does not "
                "have")


@dataclass(frozen=True)
class Tokens:
    """Rows of a run: tokens and their positions."""

    ids: np.ndarray
    positions: np.ndarray

    @staticmethod
    def of(parts: Sequence[Sequence[int]], past: Sequence[int], rows: int) -> Tokens:
        """Those of each text, behind `past` of them; where there are fewer than `rows`, any."""
        ids = np.zeros((len(past), rows), np.int64)
        for k, part in enumerate(parts):
            ids[k, :len(part)] = part
        return Tokens(ids.ravel(), (np.array(past)[:, None] + np.arange(rows)).ravel())

    def same(self, other: Tokens) -> bool:
        return (np.array_equal(self.ids, other.ids)
                and np.array_equal(self.positions, other.positions))


class _Types:
    """Weights of which the types alone are looked at."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def node(self, g: GraphBuilder, *names: str) -> Node:
        shapes = [self._weights.shape(name) for name in names]
        row = shapes[0][1:]
        for name, shape in zip(names, shapes):
            wants(self._weights, name, (shape[0], *row))
        return graph_input(names[0], TensorType("f32", (sum(s[0] for s in shapes), *row)))


class Layer:
    """What the block of one layer is written with. Names of weights are the layer's."""

    def __init__(self, decoder: Decoder, g: GraphBuilder, inputs: Mapping[str, Node], layer: int
                 ) -> None:
        self.decoder, self.g, self.inputs, self.index = decoder, g, inputs, layer
        self.texts, self.rows, _ = inputs["query"].type.dims
        self.stem = decoder.stem.format(layer) if layer >= 0 else ""
        self.made: list[Node] = []          # keys and values of the new tokens

    def weight(self, *names: str) -> Node:
        return self.decoder.weights.node(self.g, *(self.stem + name for name in names))

    def has(self, name: str) -> bool:
        return self.stem + name in self.decoder.weights

    def norm(self, x: Node, name: str) -> Node:
        return self.decoder.norm(self, x, name)

    def product(self, x: Node, *names: str) -> Node:
        """x [rows, k] @ w' of a weight [n, k], or several."""
        return self.g.matmul(x, self.g.transpose(self.weight(*names), perm=(1, 0)))

    def linear(self, x: Node, *names: str) -> Node:
        """x @ w' + bias, of a weight [n, k], or several; without the bias where there is none."""
        y = self.product(x, *(f"{name}.weight" for name in names))
        biases = [f"{name}.bias" for name in names]
        return self.g.add(y, self.weight(*biases)) if self.has(biases[0]) else y

    def linears(self, x: Node, *names: str) -> list[Node]:
        """`linear` of each name; one product where their weights lie alike."""
        weights, biases = ([f"{self.stem}{name}.{part}" for name in names]
                           for part in ("weight", "bias"))
        w = self.decoder.weights
        if not w.alike(weights) or not (w.alike(biases) or not any(b in w for b in biases)):
            return [self.linear(x, name) for name in names]
        return self.columns(self.linear(x, *names), *(w.shape(name)[0] for name in weights))

    def columns(self, x: Node, *counts: int) -> list[Node]:
        """x [rows, columns] in parts of so many columns."""
        ends = list(accumulate(counts))
        return [self.part(x, 1, end - n, end) for n, end in zip(counts, ends)]

    def part(self, x: Node, axis: int, first: int, end: int) -> Node:
        return self.g.slice(x, starts=(first,), ends=(end,), axes=(axis,), steps=(1,))

    def split(self, x: Node, heads: int, size: int) -> Node:
        """[texts * rows, heads * size] as [texts, heads, rows, size]."""
        x = self.g.reshape(x, shape=(self.texts, self.rows, heads, size))
        return self.g.transpose(x, perm=(0, 2, 1, 3))

    def queries(self, x: Node) -> Node:
        return self.split(x, self.decoder.heads, self.decoder.head_size)

    def keys(self, x: Node) -> Node:
        return self.split(x, self.decoder.shared, self.decoder.head_size)

    def turned(self, x: Node) -> Node:
        """x [texts, heads, rows, size] with the positions of its rows."""
        name = self.decoder.rotary_of(self.index)
        if name is None:
            return x
        return self.g.rotate_pairs(x, self.inputs[f"cos{name}"], self.inputs[f"sin{name}"],
                                   interleaved=self.decoder.interleaved)

    def attention(self, q: Node, k: Node, v: Node, scale: float | None = None,
                  softcap: float = 0.0) -> Node:
        """Of [texts, heads, rows, size], each over its text's past, too; [texts * rows, heads *
        size]."""
        g, d = self.g, self.decoder
        k, v = self._with_past(k, v)
        y = g.attention(q, k, v, *self._mask(), scale=scale or 1 / math.sqrt(d.head_size),
                        softcap=softcap, guarded=False)
        return g.reshape(g.transpose(y, perm=(0, 2, 1, 3)),
                         shape=(self.texts * self.rows, d.heads * d.head_size))

    def _with_past(self, k: Node, v: Node) -> list[Node]:
        g, past, shared = self.g, self.inputs[f"past.{self.index}"], self.decoder.shared
        k, v = (g.transpose(x, perm=(0, 2, 1, 3)) for x in (k, v))
        new = g.cast(g.concat(k, v, axis=2), to=past.type.dtype)
        self.made.append(new)
        lie = [new] if past.type.dims[1] == 0 else [past, new]

        def whole(first: int) -> Node:
            parts = [self.part(x, 2, first, first + shared) for x in lie]
            joined = parts[0] if len(parts) == 1 else g.concat(*parts, axis=1)
            return g.transpose(g.cast(joined, to="f32"), perm=(0, 2, 1, 3))

        return [whole(0), whole(shared)]

    def _mask(self) -> list[Node]:
        """What is added to scores, [texts, 1, rows, keys]: -inf where a row must not look."""
        g, window, query = self.g, self.decoder.windows[self.index], self.inputs["query"]
        keys = self.inputs["keys"]
        keys = g.reshape(keys, shape=(self.texts, 1, keys.type.dims[1]))
        seen = g.less_or_equal(keys, query)
        if window:
            seen = getattr(g, "and")(seen, g.less(g.sub(query, keys), window))
        bias = g.where(seen, g.const(0, "f32"), g.const(-math.inf, "f32"))
        return [g.reshape(bias, shape=(self.texts, 1, *bias.type.dims[1:]))]

    def gated(self, x: Node, gate: str, up: str, down: str) -> Node:
        """down(act(gate(x)) * up(x))."""
        return self.linear(self.g.mul(self.activated(self.linear(x, gate)), self.linear(x, up)),
                           down)

    def activated(self, x: Node) -> Node:
        kind = self.decoder.activation()
        if kind == "silu":
            return self.g.swish(x)
        return self.g.gelu(x, approximate="none" if kind == "gelu" else "tanh")


class DecoderSource:
    """A decoder for a number of texts and of rows, as `Model` compiles it; `past` may be any
    length."""

    whole = True

    def __init__(self, decoder: Decoder, rows: int, give: str, kind: str, root: Path,
                 texts: int = 1) -> None:
        self.decoder, self.rows, self.give, self.kind = decoder, rows, give, kind
        self.texts = texts
        self.name = Path(decoder.weights.place).name
        self.digest = digest(json.dumps(
            [type(decoder).__name__, decoder.config.values, decoder.weights.digest(root), texts,
             rows, give, kind], sort_keys=True).encode())

    def signature(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[str, ...]]:
        d = self.decoder
        width = d.width if self.give == "hidden" else d.vocabulary
        first = Tensor("hidden" if self.give == "hidden" else "logits", "f32",
                       (1 if self.give == "next" else self.texts * self.rows, width))
        made = [Tensor(f"new.{k}", self.kind, (self.texts, self.rows, 2 * d.shared, d.head_size))
                for k in range(d.layers)]
        return tuple(self._inputs()), (first, *made), ()

    def _inputs(self) -> list[Tensor]:
        return self.decoder.inputs(self.rows, self.give, self.kind, self.texts)

    def called(self, name: str) -> str:
        return f"input '{name}'"

    def graph(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
              ) -> Graph:
        return self.decoder.graph(self._inputs(), self.give, shapes)
