"""SessionOptions and RunOptions: what jitcl follows, what means nothing to it, what it refuses.

Nothing that would change results, or that promises a file or a figure, is passed over in silence.
"""

from __future__ import annotations

import enum
import os
import warnings
from typing import Any, NoReturn

from jitcl.errors import JitclError, OptionError
from jitcl.onnxruntime.errors import Fail, InvalidArgument, NotImplemented, UsageError, made
from jitcl.runtime.arguments import is_whole

DENORMALS = "session.set_denormal_as_zero"


class GraphOptimizationLevel(enum.IntEnum):
    """Taken and without effect: jitcl always optimises, within what the model says."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Taken and without effect."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Taken and without effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


def _unsupported(what: str, instead: str) -> NoReturn:
    raise made(OptionError, NotImplemented, f"{what} is not there in jitcl\n  {instead}")


class _Typed:
    """Attributes that exist, with values of the type that they have."""

    _fields: dict[str, Any] = {}

    def __init__(self) -> None:
        self._config: dict[str, str] = {}
        self._values = dict(self._fields)

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._fields:
            return self._values[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._fields})

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        if name not in self._fields:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'; there "
                                 f"are {', '.join(self._fields)}")
        wanted = type(self._fields[name])
        if isinstance(value, os.PathLike) and wanted is str:
            value = os.fspath(value)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise TypeError(f"{type(self).__name__}.{name}: got {value!r}, wanted "
                            f"{wanted.__name__}")
        self._values[name] = value

    def _entry(self, key: str) -> str:
        if key not in self._config:
            raise made(OptionError, UsageError, f"there is no config entry '{key}'; set were "
                                          f"{', '.join(self._config) or 'none'}")
        return self._config[key]

    def _set_entry(self, key: Any, value: Any) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"a config entry is text: got {key!r}, {value!r}")
        self._config[key] = value


class SessionOptions(_Typed):
    """onnxruntime's. Followed: intra_op_num_threads on the CPU device (0: JITCL_THREADS), and free
    dimensions that are overridden by name; docs/drop-in.md lists the rest.
    """

    _fields = {
        "enable_cpu_mem_arena": True, "enable_mem_pattern": True, "enable_mem_reuse": True,
        "enable_profiling": False, "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0, "intra_op_num_threads": 0, "log_severity_level": -1,
        "log_verbosity_level": 0, "logid": "", "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_", "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def __init__(self) -> None:
        super().__init__()
        self._dimensions: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry. Those are hints to onnxruntime's kernels; only the one that changes
        results is warned of.
        """
        self._set_entry(key, value)
        if key == DENORMALS and value == "1":
            warnings.warn(f"{DENORMALS} has no effect: jitcl computes with denormal numbers, as "
                          "the model says", stacklevel=2)

    def get_session_config_entry(self, key: str) -> str:
        """What was added; a RuntimeError for what was not."""
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """The dimensions called `name` have this size: inputs of another are refused."""
        if not is_whole(size, 0):
            raise made(OptionError, InvalidArgument, f"the size of dimension '{name}' is {size!r}, "
                                                     "wanted a whole number from 0 up")
        self._dimensions[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """NotImplemented."""
        _unsupported("add_free_dimension_override_by_denotation",
                     "Override the dimension by its name.")

    def register_custom_ops_library(self, path: str) -> None:
        """NotImplemented: jitcl runs no foreign kernels."""
        _unsupported(f"register_custom_ops_library({path!r})",
                     "An op is one declaration in jitcl: see examples/custom_op.py.")

    def add_initializer(self, name: str, value: Any) -> None:
        """NotImplemented."""
        _unsupported("add_initializer", "Put the tensor into the model, or make it an input.")

    def add_external_initializers(self, names: Any, values: Any) -> None:
        """NotImplemented."""
        _unsupported("add_external_initializers",
                     "Give InferenceSession the path of the model: files beside it are found.")

    def check(self) -> None:
        """Refuse what is promised and would not be there: files."""
        if self.optimized_model_filepath:
            _unsupported("optimized_model_filepath",
                         "`jitcl dump MODEL -o FOLDER` writes the graph after each pass.")
        if self.enable_profiling:
            _unsupported("enable_profiling",
                         "`jitcl bench MODEL --kernels 20` has the time of each kernel.")

    @property
    def dimensions(self) -> dict[str, int]:
        """Sizes of dimensions that were overridden, by name."""
        return dict(self._dimensions)

    @property
    def threads(self) -> int | None:
        """intra_op_num_threads; None where jitcl's own setting holds."""
        return max(0, self.intra_op_num_threads) or None


class RunOptions(_Typed):
    """onnxruntime's. Followed: terminate, which makes the run fail; others have no effect."""

    _fields = {"log_severity_level": -1, "log_verbosity_level": 0, "logid": "",
               "only_execute_path_to_fetches": False, "terminate": False}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry, which has no effect."""
        self._set_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """What was added; a RuntimeError for what was not."""
        return self._entry(key)

    def add_active_adapter(self, adapter: Any) -> None:
        """NotImplemented."""
        _unsupported("add_active_adapter", "Merge the adapter's weights into the model.")


def check_run(options: Any) -> None:
    """Fail where a run's options say so."""
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise TypeError(f"run_options: got a {type(options).__name__}, wanted "
                        "jitcl.onnxruntime.RunOptions, or None")
    if options.terminate:
        raise made(JitclError, Fail, "Exiting due to terminate flag being set to true.")


__all__ = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions",
           "SessionOptions", "check_run"]
