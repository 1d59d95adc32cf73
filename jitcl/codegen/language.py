"""What of a kernel's text is its language's own: the renderer asks this record for it, so that
another language with C's expressions and statements is another record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jitcl.codegen.opencl_helpers import CTYPE, STORED, helper
from jitcl.templates.opencl.memory import raw_vector, stored_vector


@dataclass(frozen=True)
class KernelLanguage:
    """Texts with fields in braces, by what they are for."""

    frame: str                               # Jinja file: extensions and arguments around the lines
    types: Mapping[str, str]                 # of values, by dtype
    stored: Mapping[str, str]                # of buffers' elements
    bits_of_half: str                        # of elements where there is no type half
    qualifiers: Mapping[str, str]            # by an array's role
    places: Mapping[str, str]                # a work-item's number along {axis}, by a loop's kind
    barrier: str                             # for the {memories} of `fences`
    fences: Mapping[str, str]                # by the role of what lanes share
    before: Mapping[str, str]                # what stands before a barrier, by such a role
    vector: str                              # type of {width} values of {type}
    splat: str                               # {value} as a vector of {type}
    convert: str                             # {value} as {type}, rounded
    reinterpret: str                         # the bits of {value} as {type}
    functions: Mapping[str, str]             # whose name is another than that of ir/scalar.py
    suffixes: Mapping[str, str]              # of integers that are written out, by dtype
    lowest: Mapping[str, str]                # what has no literal: the lowest integers
    read_half: str                           # a half in a {buffer}, {at} an element, as a float
    write_half: str                          # a float {value}, rounded to the nearest half
    read_halves: str                         # {width} neighbours
    write_halves: str
    read_vector: Callable[[str, str, str, int, int], str]
    write_vector: Callable[[str, str, str, str, int, int], str]
    helper: Callable[[str], str]             # text of a function that expressions call, by name

    def element(self, dtype: str, soft_half: bool) -> str:
        """The type of a buffer's elements; `soft_half`: for drivers that have no type half."""
        return self.bits_of_half if soft_half and dtype == "f16" else self.stored[dtype]

    def fence(self, roles: set[str]) -> str:
        """A barrier that makes visible what work-items share in memories of these roles."""
        memories = " | ".join(text for role, text in self.fences.items() if role in roles)
        before = "".join(text for role, text in self.before.items() if role in roles)
        return before + self.barrier.format(memories=memories)


# Sizes of groups are written out: where get_local_size() is folded into a loop, Adreno's compiler
# fails an assertion ("constant registers < 2": GenieX issues 1284, 1438).
OPENCL_C = KernelLanguage(
    frame="loops/opencl.cl.j2",
    types=CTYPE,
    stored=STORED,
    bits_of_half="ushort",
    qualifiers={"local": "__local ", "private": ""},
    places={"item": "get_global_id({axis})", "group": "get_group_id({axis})",
            "lane": "get_local_id({axis})"},
    barrier="barrier({memories})",
    fences={"local": "CLK_LOCAL_MEM_FENCE", "scan": "CLK_GLOBAL_MEM_FENCE"},
    # NVIDIA's compiler (580) loses a store under a condition before such a barrier, where it
    # unrolls the loop around them: an update of ScatterElements. A fence of its own keeps it.
    before={"scan": "mem_fence(CLK_GLOBAL_MEM_FENCE); "},
    vector="{type}{width}",
    splat="({type})({value})",
    convert="convert_{type}({value})",
    reinterpret="as_{type}({value})",
    functions={"abs": "fabs", "round": "rint"},
    suffixes={"u32": "u", "i64": "L", "u64": "UL"},
    lowest={"i32": "INT_MIN", "i64": "LONG_MIN"},
    read_half="vload_half({at}, {buffer})",
    write_half="vstore_half_rte({value}, {at}, {buffer})",
    read_halves="vload_half{width}(0, {buffer} + {at})",
    write_halves="vstore_half{width}_rte({value}, 0, {buffer} + {at})",
    read_vector=raw_vector,
    write_vector=stored_vector,
    helper=helper,
)
