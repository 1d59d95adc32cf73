"""Faults of drivers other than Arm's: Adreno, PowerVR, AMD, Intel, NVIDIA, PoCL."""

from __future__ import annotations

from jitcl.target.driver import When
from jitcl.target.quirk import Quirk

POCL = "Portable Computing Language"
ADRENO_OLD = ("a2xx", "a3xx", "a4xx", "a5xx")

ADRENO: tuple[Quirk, ...] = (
    Quirk(
        id="adreno-program-size",
        when=When(vendor="qualcomm", architectures=("a6xx",)),
        effect={"program_kernels": 1},
        why="programs of many kernels crash the compiler or give CL_OUT_OF_HOST_MEMORY: one "
        "kernel a program",
        seen_on="Adreno 6xx",
        links=("llama.cpp PR 26436",),
    ),
    Quirk(
        id="adreno-builtin-names",
        when=When(vendor="qualcomm", architectures=ADRENO_OLD),
        effect={"kernel_prefix": "jitcl_"},
        why="a kernel whose name begins like a built-in function ('sin') fails to build",
        seen_on="old Adreno",
        links=("Paddle-Lite opencl backend", "MNN handbook"),
    ),
    Quirk(
        id="adreno-3xx-event-times",
        when=When(vendor="qualcomm", architectures=("a3xx",)),
        effect={"trusted_events": False},
        why="event times are bogus now and then",
        seen_on="Adreno 3xx",
        links=("LiteRT ProfileTime",),
    ),
    Quirk(
        id="adreno-texture-cache",
        when=When(vendor="qualcomm", unless=(When(architectures=("a2xx", "a3xx", "a4xx")),)),
        effect={"images": True},
        why="reads through images have a cache of their own: weights are read faster as an image "
        "over their buffer, where the probe finds that such images work",
        seen_on="Adreno 5xx and later",
        links=("LiteRT cl/environment.cc", "llama.cpp ggml-opencl kernels"),
    ),
    Quirk(
        id="adreno-subgroup-reduce",
        when=When(vendor="qualcomm", version="<E031.38.11"),
        adds={"suspects": ("subgroup",)},
        why="segmentation fault in the compiler on sub_group_reduce_add",
        seen_on="Adreno, compiler before E031.38.11",
        links=("llama.cpp PR 22006",),
    ),
    Quirk(
        id="adreno-low-bit",
        when=When(vendor="qualcomm", version=">=E031.38,<E031.45"),
        adds={"suspects": ("int4",)},
        why="kernels that unpack 6-bit weights give wrong values: those that unpack 4-bit ones are "
        "tried in a process of their own first",
        seen_on="Adreno, compilers E031.38 and E031.41; right in E031.45",
        links=("llama.cpp PR 26476",),
    ),
)

POWERVR: tuple[Quirk, ...] = (
    Quirk(
        id="powervr-fp16",
        when=When(vendor="imagination", architectures=("sgx", "rogue"),
                  unless=(When(models=r"[ABC]X.*"),)),
        effect={"fp16_arithmetic": False},
        why="half arithmetic gives wrong values",
        seen_on="PowerVR up to Rogue GM9xxx",
        links=("LiteRT gpu_info",),
    ),
    Quirk(
        id="powervr-ge8320-optimiser",
        when=When(vendor="imagination", models="GE8320"),
        adds={"unoptimised_ops": ("concat", "conv")},
        why="concatenations and convolutions are wrong unless built with -cl-opt-disable",
        seen_on="PowerVR Rogue GE8320",
        links=("LiteRT cl_operation.cc", "TNN PR 1578"),
    ),
    Quirk(
        id="powervr-event-times",
        when=When(vendor="imagination"),
        effect={"trusted_events": False},
        why="times of single events are wrong: a kernel is repeated, and the difference taken",
        seen_on="PowerVR",
        links=("LiteRT ProfileTime",),
    ),
)

DESKTOP: tuple[Quirk, ...] = (
    Quirk(
        id="intel-local-memory",
        when=When(vendor="intel", architectures=("gen7", "gen8", "gen9"), device_type="gpu"),
        effect={"local_is_cache": True},
        why="local memory is banks of the L3 cache, through which all else is read as fast; with "
        "tiles staged there its compiler makes instructions for 8 lanes, which spill, and takes "
        "four times as long as for tiles in registers, whose instructions are for 16",
        seen_on="compiler 22.43 for Gen9, without a device",
        links=("Intel's OpenCL guide for processor graphics, Memory Access Overview",
               "CLBlast xgemm_32.hpp: HD Graphics 530 and 620"),
    ),
    Quirk(
        id="intel-units",
        when=When(vendor="intel", device_type="gpu"),
        effect={"unit_items": 64},
        why="a compute unit is an execution unit of 7 threads of 16 lanes, 8 of which make what "
        "others count as one",
        seen_on="Gen9, by its documents",
        links=("Intel's The Compute Architecture of Intel Processor Graphics Gen9",),
    ),
    Quirk(
        id="videocore-local-memory",
        when=When(vendor="broadcom"),
        effect={"local_is_real": False},
        why="local memory is an ordinary buffer, whatever the driver reports",
        seen_on="the text of Mesa's driver, without a device",
        links=("Mesa v3dx_draw.c, v3d_launch_grid",),
    ),
    Quirk(
        id="videocore-units",
        when=When(vendor="broadcom"),
        effect={"unit_items": 64},
        why="a compute unit is a QPU of at most 4 threads of 16 lanes",
        seen_on="the text of Mesa's driver, without a device",
        links=("Mesa v3dx_draw.c, v3d_launch_grid",),
    ),
    Quirk(
        id="intel-hd530-fp16",
        when=When(vendor="intel", models="HD GRAPHICS 530", version=">=23.20,<24.20"),
        effect={"fp16_arithmetic": False},
        why="half arithmetic gives wrong values",
        seen_on="Intel HD Graphics 530, driver 23.20; right in 24.20",
        links=("OpenCV issue 11993",),
    ),
    Quirk(
        id="intel-cpu-known-good",
        when=When(platform=r"Intel\(R\) OpenCL", device_type="cpu"),
        effect={"trusted": True},
        why="its compiler has not crashed on anything generated but some loops (intel-cpu-loops): "
        "kernels may be built in the user's process",
        seen_on="Intel's CPU runtime 2026.22, on AMD Zen 3 to 5",
    ),
    Quirk(
        id="intel-cpu-loops",
        when=When(platform=r"Intel\(R\) OpenCL", device_type="cpu"),
        adds={"suspects": ("quotient", "int64")},
        why="without AVX-512 its compiler dies in pass vplan-vec over a loop with a quotient or "
        "remainder of i32 by what the loop keeps, used twice; and in instcombine over "
        "loops of i64 that store to one element (silero_vad's last convolution), on Intel's CPUs "
        "with AVX-512, too",
        seen_on="Intel's CPU runtime 2026.22, on Zen 3 and Emerald Rapids; right on Zen 4",
        reproducer="tests/test_onnx_conformance.py",  # test_mod_broadcast of onnx's node tests
    ),
    Quirk(
        id="intel-cpu-fork-safe",
        when=When(platform=r"Intel\(R\) OpenCL", device_type="cpu"),
        effect={"fork_safe": True},
        why="a forked child gets a working device, unless another thread was in the driver when it "
        "was forked; it computes on one thread, since those of the runtime are not copied",
        seen_on="Intel's CPU runtime 2026.22, on AMD Zen 5",
        reproducer="tests/test_forking.py",  # test_a_forked_child
    ),
    Quirk(
        id="nvidia-known-good",
        when=When(vendor="nvidia"),
        effect={"trusted": True},
        why="its compiler has not crashed on anything generated: kernels may be built in "
        "the user's process",
        seen_on="H200",
    ),
    Quirk(
        id="nvidia-half-vectors",
        when=When(vendor="nvidia"),
        effect={"fp16_arithmetic": False},
        why="its compiler fails where a half4 is chosen by a condition (\"Do not know how to split "
        "the result of this operator!\"), has no fma and fmax of halves, and reads a half4 in two "
        "pieces; halves are moved as ushort4, products of halves go to tensor cores",
        seen_on="H200, driver 580.159",
    ),
    Quirk(
        id="nvidia-failures-last",
        when=When(vendor="nvidia"),
        effect={"failures_last": True, "flush_every": 64},
        why="an event costs 2.2 of a launch's 6.0 us; a kernel that fails takes the context along, "
        "which any wait tells (-9999): one event for many launches",
        seen_on="H100, driver 580.159",
    ),
)

CPU_DRIVERS: tuple[Quirk, ...] = (
    Quirk(
        id="pocl-3.0-library-cpu-mismatch",
        when=When(
            platform=POCL,
            version="<3.2",
            isa=("avx512f",),
            compiler_lacks="^(skylake-avx512|cascadelake|cooperlake|icelake-server|tigerlake|"
            "sapphire)",
        ),
        effect={"max_vector_width": 8, "multiply_add": "plain"},
        why="the built-in library is compiled for skylake-avx512, can't be inlined into code for "
        "another CPU: 16-wide float arithmetic aborts the process ('Do not know how to scalarize "
        "this operator's operand!'), fma() and mad() are calls (8 times slower than a*b+c). "
        "devices/opencl/pocl.py makes "
        "the two agree where it can; then this row does not hold",
        seen_on="PoCL 3.0-rc2 (LLVM 14), AMD Zen 4 and Zen 5",
        links=("pocl issue 1049",),
        reproducer="tests/test_probes.py",  # test_a_real_crash_of_pocl
    ),
    Quirk(
        id="pocl-3-half",
        when=When(platform=POCL, version="<4.0"),
        effect={"fp16_arithmetic": False},
        why="'declaring variable of type half is not allowed', whatever the CPU has",
        seen_on="PoCL 3.0, 3.1",
        reproducer="tests/test_probes.py",  # test_half_arithmetic
    ),
    Quirk(
        id="pocl-known-good",
        when=When(platform=POCL),
        effect={"trusted": True},
        why="the compiler's crash is known and kept away from (pocl-3.0-library-cpu-mismatch): "
        "kernels may be built in the user's process",
        seen_on="PoCL 3.0, 3.1",
    ),
)
