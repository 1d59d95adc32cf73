"""Other engines that run ONNX models: which are installed, and how each is opened.

Only their own processes import them. All compute in float32 as the model says, with as many threads
as jitcl.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jitcl.bench.processes import Entrant
from jitcl.errors import DeviceError, OptionError

PEERS = ("onnxruntime", "openvino")     # the first that runs says what is right


def installed(peer: str) -> bool:
    """Whether it could be imported; nothing is."""
    return importlib.util.find_spec(peer) is not None


def choose_peers(text: str, there: Callable[[str], bool] = installed,
                 ) -> tuple[list[str], list[str]]:
    """(peers to run, peers that are not installed) for "auto", "none", or names with commas.

    Raises OptionError for a name that is no peer's, and for one that is asked for by name but not
    installed.
    """
    if text == "none":
        return [], []
    if text == "auto":
        return [p for p in PEERS if there(p)], [p for p in PEERS if not there(p)]
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in PEERS:
            raise OptionError(f"--peers: got '{name}', wanted auto, none, or names out of "
                              f"{', '.join(PEERS)} with commas")
        if not there(name):
            raise OptionError(f"--peers: {name} is not installed\n  Install it: pip install {name}"
                              "; or take --peers auto for those that are.")
    if not names:
        raise OptionError("--peers: got no name, wanted auto, none, or names out of "
                          f"{', '.join(PEERS)} with commas")
    return names, []


def blas_kernels() -> str:
    """The BLAS libraries that this process has loaded, and for which CPU each computes."""
    if not installed("threadpoolctl"):
        return "BLAS kernels not known: threadpoolctl is not installed"
    pools = importlib.import_module("threadpoolctl").threadpool_info()
    return ", ".join(
        f"{p['internal_api']} {p['version']}"
        + (f" for {p['architecture']}" if p.get("architecture") else "")
        + f" with {p['num_threads']} thread{'s' * (p['num_threads'] > 1)}"
        for p in pools if p["user_api"] == "blas") or "no BLAS that threadpoolctl knows"


def peer_entrant(peer: str, model: str | bytes, feeds: dict[str, Any]) -> Entrant:
    """A peer with an ONNX model: the path of a file, or its bytes."""
    return Entrant(peer, f"jitcl.bench.peers:open_{peer}", {"model": model, "feeds": feeds}, True)


@dataclass(frozen=True)
class PeerEngine:
    """A peer's session. `call` computes a list of outputs, in the order of `names`."""

    name: str
    call: Callable[[], Sequence[Any]]
    names: Sequence[str]
    version: str

    @property
    def about(self) -> dict[str, Any]:
        return {"version": self.version}

    def run(self) -> dict[str, Any]:
        try:
            return dict(zip(self.names, self.call()))
        except Exception as error:      # whatever the library raises becomes one kind with its name
            raise DeviceError(f"{self.name} failed while it ran the model: {error}") from error


def open_onnxruntime(model: str | bytes, feeds: dict[str, Any], threads: int) -> PeerEngine:
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:          # its errors have no common class of their own
        raise DeviceError(f"onnxruntime does not take the model: {error}") from error
    fed = {name: value for name, value in feeds.items() if value is not None}
    return PeerEngine("onnxruntime", lambda: session.run(None, fed),
                      [o.name for o in session.get_outputs()], onnxruntime.__version__)


def open_openvino(model: str | bytes, feeds: dict[str, Any], threads: int) -> PeerEngine:
    openvino = importlib.import_module("openvino")
    core = openvino.Core()
    try:
        compiled = core.compile_model(core.read_model(model), "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads})
    except Exception as error:          # RuntimeErrors and its own
        raise DeviceError(f"openvino does not take the model: {error}") from error
    fed = {name: value for name, value in feeds.items() if value is not None}
    names = [output.get_any_name() for output in compiled.outputs]

    def call() -> list[Any]:
        results = compiled(fed)
        return [results[output] for output in compiled.outputs]
    return PeerEngine("openvino", call, names, openvino.__version__.partition("-")[0])
