"""A language model's half precision and 4-bit weights on a driver whose compiler aborts on both.

    python examples/mali_compiler.py            # the page: mali_compiler.md

No Mali is needed: tests/drivers makes an OpenCL driver that is there answer as a Mali-G78 and abort
as that one's compiler does. It is built with gcc and OpenCL's headers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import jitcl

ROOT = Path(__file__).resolve().parent.parent
WIDE, INNER, BLOCK = 64, 128, 32
RULES = (r"abort /v(load|store)a?_half|convert_half|\(half[0-9]*\)/ LLVM ERROR: Cannot select: "
         "intrinsic %llvm.bifrost.2586",
         r"abort /_[0-9a-f]{10}\(.*(int4|& 15|0xf|>> 4)/ LLVM ERROR: CannotYetSelect")

PLAIN = """
KERNEL = '''__kernel void widen(__global const half* x, __global float* y) {
    y[get_global_id(0)] = vload_half(get_global_id(0), x);
}'''
context = cl.Context([device("Mali")])
build(context, KERNEL)
print("built")
"""

JITCL = """
import json
import numpy as np
import jitcl

model = jitcl.compile({path!r}, device="opencl:arm", precision="normal")
with np.load({feeds!r}) as z:
    y = model.run(dict(z))["y"]
print(model.report())
print(json.dumps(y.tolist()))
"""


def feed_forward() -> bytes:
    """One block of a decoder: RMS norm, 4-bit weights in blocks of 32 with their scales, SiLU."""
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {"gain": np.ones(WIDE, np.float32)}
    nodes = [helper.make_node("SimplifiedLayerNormalization", ["x", "gain"], ["norm"], "norm")]
    for name, source, k, n in (("gate", "norm", WIDE, INNER), ("up", "norm", WIDE, INNER),
                               ("down", "inner", INNER, WIDE)):
        constants[f"{name}_w"] = rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2), np.uint8)
        constants[f"{name}_s"] = (rng.random(n * k // BLOCK) / 40).astype(np.float32)
        nodes.append(helper.make_node(
            "MatMulNBits", [source, f"{name}_w", f"{name}_s"], [name], name,
            domain="com.microsoft", K=k, N=n, bits=4, block_size=BLOCK))
        if name == "up":
            nodes += [helper.make_node(op, inputs.split(), [out], out) for op, inputs, out in (
                ("Sigmoid", "gate", "sigmoid"), ("Mul", "gate sigmoid", "silu"),
                ("Mul", "silu up", "inner"))]
    nodes.append(helper.make_node("Add", ["x", "down"], ["y"], "residual"))
    tensors = [numpy_helper.from_array(a, name) for name, a in constants.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (8, WIDE)) for name in "xy")
    graph = helper.make_graph(nodes, "block", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]).SerializeToString()


def main(folder: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.drivers import posing

    if posing.reason():
        sys.exit(f"the driver that aborts can't be built here: {posing.reason()}")
    pose = next(posing.POSES[f"mali-g78:{name}"] for name in ("intel", "pocl")
                if any(name in d.spec or name in d.target.driver.lower() for d in jitcl.devices()))
    path, feeds = folder / "block.onnx", folder / "feeds.npz"
    path.write_bytes(feed_forward())
    np.savez(feeds, x=np.random.default_rng(1).standard_normal((8, WIDE)).astype(np.float32))

    done = posing.run_python(posing.PLAIN + PLAIN, cache=folder, pose=pose, rules=RULES)
    print(f"OpenCL's own interface: the process ends, {done.died}: {done.stderr.splitlines()[-1]}")
    assert done.died == "SIGABRT"
    before = done.stats.crashes

    with np.load(feeds) as z:
        want = jitcl.compile(path, device="cpu").run(dict(z))["y"]
    code = JITCL.format(path=str(path), feeds=str(feeds))
    crashes = []
    for start in ("first", "second"):
        done = posing.run_python(code, cache=folder, pose=pose, rules=RULES)
        apart = np.abs(np.array(done.value) - want).max() / np.abs(want).max()
        crashes.append(done.stats.crashes - before)
        print(f"jitcl, {start} start: right (largest error {apart:.1e}); {crashes[-1]} worker "
              "processes have died so far")
        print("\n".join(f"  {line}" for line in (
            *done.stderr.splitlines(), *done.stdout.splitlines()[:-1])))
        assert apart < 5e-3
    assert crashes[0] > 0 and crashes[1] == crashes[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
