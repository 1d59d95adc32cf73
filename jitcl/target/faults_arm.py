"""Faults of Arm's drivers for Mali."""

from __future__ import annotations

from jitcl.target.driver import When
from jitcl.target.quirk import Quirk

MALI = When(vendor="arm")
BEFORE_VALHALL = When(vendor="arm", architectures=("midgard", "bifrost"))
T860_R13_R14 = When(vendor="arm", models="T860", version=">=r13p0,<=r14p0")

ARM: tuple[Quirk, ...] = (
    Quirk(
        id="mali-local-memory",
        when=MALI,
        effect={"local_is_real": False},
        why="local memory is ordinary memory behind the cache, whatever the driver reports: "
        "staging tiles into it only adds copies",
        seen_on="all Mali",
        links=("LiteRT reduce.cc",),
    ),
    Quirk(
        id="mali-reductions",
        when=MALI,
        caps={"reduction_group": 64},
        why="reductions shared by more work-items are slower: partial results go through memory",
        seen_on="all Mali",
        links=("LiteRT reduce.cc",),
    ),
    Quirk(
        id="mali-midgard-reductions",
        when=When(vendor="arm", architectures=("midgard",)),
        caps={"reduction_group": 32},
        why="as mali-reductions, with fewer threads a core",
        seen_on="Midgard",
        links=("LiteRT reduce.cc",),
    ),
    Quirk(
        id="mali-operands",
        when=MALI,
        caps={"max_operands": 8},
        effect={"max_concat": 8},
        why="kernels with many buffers give CL_OUT_OF_RESOURCES: at most 8 inputs are "
        "concatenated by one kernel, more in several",
        seen_on="Mali",
        links=("LiteRT operation_selector.cc", "LiteRT tasks/split.cc"),
    ),
    Quirk(
        id="mali-kernel-size",
        when=MALI,
        caps={"max_members": 24},
        why="big kernels give CL_OUT_OF_RESOURCES at launch, or crash the compiler",
        seen_on="Mali",
        links=("LiteRT operation_selector.cc",),
    ),
    Quirk(
        id="mali-registers",
        when=MALI,
        caps={"registers": 5},
        why="tiles that fit other GPUs spill: 64 registers of 32 bits a thread, of which "
        "addresses need a third; and from 33 on half as many threads run: five vectors of four "
        "leave room for addresses (a 2x2x4 tile takes 47 to 57, 2x1x4 up to 32, 4x1x4 32 at least)",
        seen_on="Mali, where Adreno doesn't spill; Mesa's compiler for G610 and G52",
        links=("MNN skills/opencl-optimize",),
    ),
    Quirk(
        id="mali-half-pairs",
        when=When(vendor="arm", unless=(When(architectures=("midgard",)),)),
        effect={"half_pairs": True},
        why="a register is two halves, and what is computed in half is in pairs (Midgard's "
        "registers are four times as wide): lanes that lie in two are multiplied one by one",
        seen_on="Mesa's compiler for G52, G610 and G720",
        links=("Mesa bifrost_nir.c, bi_vectorize_filter",),
    ),
    Quirk(
        id="mali-register-allocation",
        when=When(vendor="arm", extension=r"\bcl_arm_scheduling_controls\b"),
        adds={"build_options": ("-fregister-allocation=64",)},
        why="the compiler trades registers for threads and spills; this option lets a kernel "
        "have all 64",
        seen_on="Mali with cl_arm_scheduling_controls",
        links=("LiteRT conv_generic.cc",),
    ),
    Quirk(
        id="mali-queue-depth",
        when=MALI,
        caps={"queue_depth": 96},
        why="long queues stall the user interface and end in CL_OUT_OF_RESOURCES",
        seen_on="Mali",
        links=("MACE opencl_helper.cc", "LiteRT inference_context.cc"),
    ),
    Quirk(
        id="mali-queue-wait",
        when=BEFORE_VALHALL,
        caps={"queue_depth": 24, "flush_every": 12},
        why="launches are lost or fail unless the marker before the last is waited for",
        seen_on="Midgard, Bifrost",
        links=("LiteRT inference_context.cc",),
    ),
    Quirk(
        id="mali-event-times",
        when=MALI,
        effect={"trusted_events": False},
        why="times of single events are wrong: a kernel is repeated, and the difference taken",
        seen_on="Mali",
        links=("LiteRT ProfileTime", "MNN commit d7591d1e9"),
    ),
    Quirk(
        id="mali-t6xx-profiling-queue",
        when=When(vendor="arm", models=r"T6\d\d"),
        effect={"trusted_events": False},
        why="clFinish hangs on a queue with profiling: there is none, and nothing is tuned",
        seen_on="Mali-T628",
        links=("LiteRT cl/inference_context.cc",),
    ),
    Quirk(
        id="mali-binary-crash",
        when=BEFORE_VALHALL,
        effect={"cached_binaries": False},
        why="segmentation fault inside clCreateProgramWithBinary, on binaries that it made: "
        "kernels are built from source each time",
        seen_on="Mali, arm64",
        links=("MACE issue 245", "MACE issue 248", "TNN issue 878"),
    ),
    Quirk(
        id="mali-t860-work-group",
        when=When(vendor="arm", models="T860", version="==r14p0"),
        caps={"max_work_group": 128},
        why="CL_OUT_OF_RESOURCES at the work-group size of 256 that the driver allows",
        seen_on="Mali-T860 r14p0",
        links=("OpenCV issue 13108",),
    ),
    Quirk(
        id="mali-t860-unstable",
        when=T860_R13_R14,
        effect={"dependable": False},
        why="GPU faults and freezes without a cure: device 'auto' stays on the CPU",
        seen_on="Mali-T860 r13p0, r14p0",
        links=("armnn issue 116",),
    ),
    Quirk(
        id="mali-g72-mp3-idle",
        when=When(vendor="arm", models="G72", compute_units=(3,)),
        effect={"dependable": False},
        why="the GPU faults after 100 ms without work: device 'auto' stays on the CPU. The chip "
        "(MediaTek P60) shows only in its three cores",
        seen_on="MediaTek P60, Mali-G72 MP3",
        links=("Paddle-Lite issue 9127",),
    ),
    Quirk(
        id="mali-t760-language",
        when=When(vendor="arm", models=r"T7\d\d"),
        effect={"cl_std": "CL1.1"},
        why="non-uniform work-groups and other parts of later languages are missing or broken",
        seen_on="Mali-T760",
        links=("ComputeLibrary issue 289",),
    ),
    Quirk(
        id="mali-select-fp16",
        when=When(vendor="arm", architectures=("bifrost", "valhall")),
        adds={"suspects": ("half", "half_cast")},
        why="the compiler aborts the process on some kernels with half arithmetic ('Cannot "
        "select: intrinsic %llvm.bifrost.2586'): such kernels want a process of their own to build",
        seen_on="Mali-G78 (Pixel 6a) and others",
        links=("MNN commit f5a58dda1", "MNN issue 3175", "MNN issue 3571"),
    ),
    Quirk(
        id="mali-select-low-bit",
        when=When(vendor="arm", architectures=("bifrost", "valhall")),
        adds={"suspects": ("int4", "int8")},
        why="as mali-select-fp16, on weights of 4 and 8 bits, worse where a private vector is "
        "read through a cast pointer (jitcl never writes that)",
        seen_on="Mali-G78 (Pixel 6a) and others",
        links=("MNN commit 83da6d238", "MNN issue 3571"),
    ),
)
