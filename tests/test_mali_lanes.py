"""Which lanes of a Mali read which lines, from listings of Mesa's compiler; what loops cost so."""

from __future__ import annotations

import pytest

from benchmarks.mali_lanes import addresses, lines
from benchmarks.static_cost import MOST_LOOP, missed, weighed

SETUP = """
        r0 = LSHIFT_OR.i32 r60, u256, u260.b2
        r1 = IADD_IMM.i32 u9, index:4294967292
        r0 = CSEL.s32.lt r0^, r1, r0^, r1^
        r0 = LSHIFT_OR.i32 r0^, u256, u260.b2
        r1 = MOV.i32 u256
        r4 = MOV.i32 u2
        r5 = MOV.i32 u2[1]
        r2:r3 = SHADDX.s64.flow4 r4:r5^, r0:r1^, shift:0
"""                                              # r2:r3: 16 bytes from lane to lane, clamped
ROW = """
        r6 = IMUL.i32 r61, u7
        r7 = MOV.i32 u256
        r6:r7 = SHADDX.s64 u0:u0[1], r6:r7^, shift:2
"""                                              # r6:r7: the rows of an argument's length apart
LISTED = """block0 {
%s
} -> block1

block1 {
%s
        r13 = ICMP_OR.s32.lt.m1 r12, u5, u256
        BRANCHZ.i16.eq r13^.h00, u256 -> block2
} -> block2 block1  from block0 block1

block2 {
        NOP.flow15
} from block1
"""
LOADS = """
        r8:r9:r10:r11 = LOAD.i128.flow1 r2, r3, byte_offset:0
        r16:r17:r18:r19 = LOAD.i128.flow1 r6, r7, byte_offset:0
        r2:r3 = SHADDX.s64 r2:r3^, u6:u6[1], shift:0
        r12 = IADD_IMM.i32 r12^, index:1
"""
CODE = """
   LOAD.i128.unsigned.slot0.wait0 @r8:r9:r10:r11, r2, offset:0
   LOAD.i128.unsigned.slot1.wait1 @r16:r17:r18:r19, r6, offset:0
""" + 16 * "   FMA.f32 r20, r8, r16, r20^\n" + 8 * "   IADD_IMM.i32 r12, r12^, #0x1\n" + (
    "   BRANCHZ.eq.reconverge 0x0, offset:-27\n   NOP.end\n")
VALHALL = {"fma": 1.0, "ls": 2.0}
KEPT = {"occupancy": 1, "spills": 0, "scalar": 0, "decided": {}}     # the other criteria


def listed(setup: str = SETUP + ROW, loop: str = LOADS) -> str:
    return LISTED % (setup, loop)


def loop_of(listing: str, group: tuple[int, ...]) -> float:
    return weighed(listing + CODE, VALHALL, [group])["loop"]


def test_strides_are_followed_through_clamps_shifts_and_turns_of_loops():
    assert addresses(listed()) == [(16, 0, 0), (0, None, 0)]


@pytest.mark.parametrize(("strides", "group", "count"), [
    ((0, 0, 0), (16, 4, 1), 1), ((0, None, 0), (16, 4, 1), 1), ((0, None, 0), (4, 16, 1), 4),
    ((None, 0, 0), (16, 4, 1), 16), ((16, 0, 0), (16, 4, 1), 5), ((16, 0, 0), (4, 16, 1), 2),
    ((16, None, 0), (4, 16, 1), 8), ((64, 0, 0), (16, 1, 1), 16), ((16, 0, 0), (2, 3, 1), 2),
    ((0, 0, None), (2, 2, 16), 4)])
def test_lines_that_a_wave_touches_wherever_they_begin(strides, group, count):
    assert lines(strides, 16, group) == count


def test_slices_of_a_group_begin_anywhere_but_each_wave_is_of_one():
    """A local id times an argument; a group's id is all its lanes'."""
    begin = """
        r12 = U16_TO_U32 r56.h00
        r12 = IMUL.i32 r12^, u14
        r13 = MOV.i32 u256
        r2:r3 = SHADDX.s64 r2:r3^, r12:r13^, shift:0
        r14 = IMUL.i32 r59, u7
        r15 = MOV.i32 u256
        r6:r7 = SHADDX.s64 r6:r7^, r14:r15^, shift:2
"""
    assert addresses(listed(SETUP + ROW + begin)) == [(16, 0, None), (0, None, 0)]
    assert lines((16, 0, None), 16, (2, 16, 2)) == lines((16, 0, 0), 16, (2, 16, 1)) == 2
    assert lines((16, 0, None), 16, (2, 2, 4)) == 8


def test_loops_whose_lanes_share_lines_are_not_bound_by_memory():
    assert loop_of(listed(), (64, 1, 1)) == pytest.approx((4 + 1) / 6)
    assert loop_of(listed(), (4, 16, 1)) == pytest.approx((2 + 4) / 6)


@pytest.mark.parametrize("setup", [
    SETUP.replace("u260.b2", "u260.b3", 1).replace("r60", "r61") + ROW,      # 32 bytes apart
    SETUP + ROW.replace("r61", "r60"), SETUP + ROW.replace("r61", "r55"),    # not shared; unknown
    SETUP + ROW.replace("IMUL.i32", "CLPER.i32"),                            # another lane's value
])
def test_loops_that_are_bound_by_memory_miss_the_criterion(setup):
    groups = ((1, 64, 1), (64, 1, 1), (4, 16, 1))
    costs = weighed(listed(setup) + CODE, VALHALL, groups)
    assert costs["loop"] == pytest.approx((4 + 4) / 6) and costs["loop"] > MOST_LOOP
    costs |= KEPT
    assert missed(costs, "mali-g610", "high", "GEMM") == {"loop"}


def test_the_launch_that_reads_the_most_counts():
    listing = listed(SETUP + ROW.replace("r61", "r60"))
    both = weighed(listing + CODE, VALHALL, [(1, 64, 1), (16, 4, 1)])["loop"]
    assert loop_of(listing, (1, 64, 1)) < both == loop_of(listing, (16, 4, 1))


def test_what_is_read_from_lanes_own_addresses_is_their_own():
    inside = LOADS.replace("LOAD.i128.flow1 r6, r7", "LOAD.i128.flow1 r8, r9")
    assert addresses(listed(loop=inside))[1] == (None, 0, 0)


def test_lanes_that_came_different_ways_may_hold_different_values():
    text = """block0 {
        r0 = MOV.i32 u2
        r1 = MOV.i32 u2[1]
        r2 = ICMP_OR.s32.lt.m1 %s, u9, u256
        BRANCHZ.i16.eq r2^.h00, u256 -> block2
} -> block2 block1

block1 {
        r0 = MOV.i32 u3
} -> block2  from block0

block2 {
        r4 = LOAD.i32 r0, r1, byte_offset:0
} from block0 block1
"""
    assert addresses(text % "r60") == [(None, 0, 0)]
    assert addresses(text % "u8") == [(0, 0, 0)]


def test_a_listing_of_another_kernel_says_nothing():
    listing = listed(loop=LOADS.partition("\n        r16")[0])
    assert loop_of(listing, (64, 1, 1)) == pytest.approx((4 + 4) / 6)


@pytest.mark.parametrize(("more", "floats"), [
    ("FMA.f32 r4, r4^, r5, 0x0.neg", 0), ("*FMA.f32 t0, t1, 0x4f7ffffe, #0.neg", 0),
    ("FMA.f32 r4, r4^, r5, 0x0", 1), ("FMA.f32 r9, r10.neg, r12, r10^", 1)])
def test_multiplications_are_no_sums_of_f32(more, floats):
    code = CODE.replace("FMA.f32", "FMA.v2f16").replace("   NOP.end", f"   {more}\n   NOP.end")
    code = code.replace("   BRANCHZ.eq.reconverge 0x0, offset:-27\n", "")
    costs = weighed(listed() + code, VALHALL, [()]) | KEPT
    assert costs["floats"] == floats
    assert ("halves" in missed(costs, "mali-g610", "low", "depthwise")) == bool(floats)
