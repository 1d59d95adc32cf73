"""The memory planner: what lives at the same time never shares bytes; sharing is near the bound."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step
from jitcl.errors import OptionError, VerifyError
from jitcl.runtime import memory
from jitcl.runtime.memory import Life, pack, plan_memory

MODES = ["arena", "slots"]
MEMORIES = ["low", "normal", "high"]

a_life = st.builds(
    lambda nbytes, first, length: Life(nbytes, first, first + length),
    st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10))


def expect_sound(lives, packing, mode, alignment):
    """No two overlapping lives share a byte; everything lies aligned within its slot."""
    assert len(packing.places) == len(lives)
    for (slot, offset), life in zip(packing.places, lives, strict=True):
        assert offset % alignment == 0
        assert 0 <= offset <= offset + life.nbytes <= packing.slots[slot]
        assert mode == "arena" or offset == 0
    for i, a in enumerate(lives):
        for j in range(i):
            b = lives[j]
            if a.first > b.last or b.first > a.last or packing.places[i][0] != packing.places[j][0]:
                continue
            x, y = packing.places[i][1], packing.places[j][1]
            assert x + max(a.nbytes, 1) <= y or y + max(b.nbytes, 1) <= x, (a, b)
    assert packing.lower_bound <= packing.peak <= packing.unshared
    assert mode == "slots" or len(packing.slots) <= 1
    assert len(packing.slots) <= len(lives)


@pytest.mark.parametrize("level", MEMORIES)
@pytest.mark.parametrize("mode", MODES)
@given(lives=st.lists(a_life, max_size=40), alignment=st.sampled_from([1, 64, 4096]))
def test_lives_that_overlap_never_share_bytes(mode, level, lives, alignment):
    packing = pack(lives, mode, level, alignment)
    expect_sound(lives, packing, mode, alignment)


@pytest.mark.parametrize("mode", MODES)
@given(lives=st.lists(a_life, max_size=25))
def test_low_never_needs_more_than_normal_nor_normal_than_high(mode, lives):
    low, normal, high = (pack(lives, mode, level).peak for level in MEMORIES)
    assert low <= normal <= high
    assert high == pack(lives, mode).unshared


@pytest.mark.parametrize("mode", MODES)
@given(lives=st.lists(a_life, max_size=25))
def test_the_same_lives_are_packed_the_same_way(mode, lives):
    assert pack(lives, mode, "low") == pack(list(lives), mode, "low")


def test_the_example_of_the_docstring():
    lives = [Life(16, 0, 1), Life(8, 1, 2), Life(8, 3, 4), Life(16, 4, 4)]
    arena = pack(lives, "arena", alignment=1)
    assert (arena.peak, arena.lower_bound, arena.unshared) == (24, 24, 48)
    assert arena.slots == (24,)
    slots = pack(lives, "slots", alignment=1)
    assert slots.peak == slots.lower_bound == 24


@pytest.mark.parametrize("mode", MODES)
def test_a_chain_needs_two_neighbours(mode):
    lives = [Life(1024 * (i % 4 + 1), i, i + 1) for i in range(100)]
    for level in ("low", "normal"):
        packing = pack(lives, mode, level)
        assert packing.peak == packing.lower_bound == 7 * 1024


def test_an_arena_fills_the_smallest_gap_that_fits():
    # At steps 0-9 the long ones leave gaps of 128 and 64 bytes once the short ones are over.
    lives = [Life(1024, 0, 9), Life(512, 0, 9), Life(128, 0, 1), Life(64, 0, 1), Life(64, 2, 9)]
    packing = pack(lives, "arena")
    assert packing.peak == packing.lower_bound == 1024 + 512 + 128 + 64


def test_nothing_to_place():
    for mode in MODES:
        for level in MEMORIES:
            packing = pack([], mode, level)
            assert (packing.places, packing.slots, packing.peak) == ((), (), 0)


def test_an_empty_tensor_has_an_address():
    packing = pack([Life(0, 0, 1), Life(0, 0, 1)], "slots")
    assert packing.slots == (64, 64)
    assert pack([Life(0, 0, 1), Life(0, 0, 1)], "arena").slots == (128,)


def test_wrong_options():
    with pytest.raises(OptionError, match="memory 'lowest', wanted low, normal, high"):
        pack([], "arena", "lowest")
    with pytest.raises(OptionError, match="mode 'heap', wanted arena, slots"):
        pack([], "heap")


def test_low_searches_where_greedy_leaves_a_hole():
    lives = [Life(16, 0, 2), Life(8, 1, 3), Life(8, 3, 4), Life(16, 4, 4), Life(8, 0, 0)]
    found = pack(lives, "arena", "low", alignment=1)
    assert found.peak == found.lower_bound == 24


def test_three_hundred_tensors_of_a_residual_network_come_to_the_bound():
    """Shrinking feature maps with shortcuts that live for three steps."""
    lives: list[Life] = []
    step = 0
    for stage in range(4):
        for _ in range(25):
            nbytes = (4 << 20) >> stage
            lives += [Life(nbytes, step, step + 3), Life(nbytes // 4, step + 1, step + 2),
                      Life(nbytes // 4, step + 2, step + 3)]
            step += 3
    for mode in MODES:
        packing = pack(lives, mode)
        assert packing.peak == packing.lower_bound == 9 << 20
        assert packing.unshared > 30 * packing.peak


# -- plans -------------------------------------------------------------------------------------


def a_plan(kinds: str, *steps: tuple[str, tuple[int, ...], tuple[int, ...]]) -> Plan:
    """One letter a buffer (i, o, c, t) of 100, 200 ... bytes; steps as (name, reads, writes)."""
    names = {"i": "input", "o": "output", "c": "const", "t": "temp"}
    buffers = tuple(BufferSpec(f"b{n}", "u8", (100 * (n + 1),), 100 * (n + 1), names[k])
                    for n, k in enumerate(kinds))
    return Plan((), (), (KernelSource("k", "", "numba"),),
                tuple(Step(name, "k", (*reads, *writes), writes=writes)
                      for name, reads, writes in steps), buffers, ())


CHAIN = a_plan("icttto", ("s0", (0, 1), (2,)), ("s1", (2,), (3,)), ("s2", (3,), (4,)),
               ("s3", (4,), (5,)))


def test_lives_come_from_the_steps():
    assert memory.lives(CHAIN) == [
        (2, Life(300, 0, 1)), (3, Life(400, 1, 2)), (4, Life(500, 2, 3))]


def test_a_buffer_written_in_parts_lives_from_the_first_write():
    plan = a_plan("itto", ("a", (0,), (1,)), ("b", (0,), (2,)), ("c", (0,), (1,)),
                  ("d", (1, 2), (3,)))
    assert memory.lives(plan) == [(1, Life(200, 0, 3)), (2, Life(300, 1, 3))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", MEMORIES)
def test_a_plan_gets_slots_and_offsets(mode, level):
    planned = plan_memory(CHAIN, mode, level, alignment=64)
    by_index = {i: b for i, b in enumerate(planned.buffers) if b.kind == "temp"}
    assert list(by_index) == [2, 3, 4]
    for b in by_index.values():
        assert 0 <= b.slot < len(planned.slots)
        assert b.offset + b.nbytes <= planned.slots[b.slot]
    total = {"high": 320 + 448 + 512}.get(level, 512 + 448)      # 2 and 4 share
    assert sum(planned.slots) == total
    assert planned.peak_bytes == total + 100 + 200 + 600
    untouched = [b for b in planned.buffers if b.kind != "temp"]
    assert untouched == [b for b in CHAIN.buffers if b.kind != "temp"]
    assert (planned.steps, planned.kernels) == (CHAIN.steps, CHAIN.kernels)
    assert plan_memory(planned, mode, level, alignment=64) == planned


def test_a_temporary_that_no_step_touches_has_no_place():
    plan = a_plan("itt", ("a", (0,), (1,)))
    assert [b.slot for b in plan_memory(plan).buffers] == [-1, 0, -1]


def test_an_output_of_a_step_does_not_lie_on_its_input():
    plan = a_plan("itto", ("a", (0,), (1,)), ("b", (1,), (2,)), ("c", (2,), (3,)))
    for mode in MODES:
        planned = plan_memory(plan, mode)
        a, b = planned.buffers[1:3]
        assert (a.slot, a.offset) != (b.slot, b.offset)


def test_reading_before_writing_is_an_error():
    plan = a_plan("ito", ("a", (1,), (2,)))
    with pytest.raises(VerifyError, match="step 'a' reads buffer 1 'b1' before any step writes it"):
        plan_memory(plan)


def test_writing_a_stranger_is_an_error():
    plan = a_plan("ito", ("a", (0,), (2,)))
    odd = dataclasses.replace(plan.steps[0], writes=(1,))
    with pytest.raises(VerifyError, match=r"step 'a' writes buffers \[1\], which are none of its"):
        plan_memory(dataclasses.replace(plan, steps=(odd,)))


# ---- parts of buffers

def joined_plan(*steps: Step) -> Plan:
    """Buffers: 0 and 1 are the parts of 2, which has 192 bytes; 3 is another of 64."""
    def spec(name, count, **more):
        return BufferSpec(name, "f32", (count,), 4 * count, "temp", **more)

    buffers = (spec("a", 32, whole=2), spec("b", 16, whole=2, part_offset=128), spec("y", 48),
               spec("z", 16))
    return Plan((), (), (), steps, buffers, ())


def test_other_sizes_lie_in_the_slots_that_there_are():
    """A plan for many shapes grows: a chain of three, and parts of a buffer."""
    larger = tuple(dataclasses.replace(b, nbytes=3 * b.nbytes + 4) for b in CHAIN.buffers)
    before = plan_memory(CHAIN, "slots", alignment=64)
    grown = memory.in_same_slots(before, larger, 64)
    assert [b.slot for b in grown.buffers] == [b.slot for b in before.buffers]
    assert [(b.nbytes, b.offset) for b in grown.buffers] == [(b.nbytes, 0) for b in larger]
    assert grown.slots == plan_memory(
        dataclasses.replace(CHAIN, buffers=larger), "slots", alignment=64).slots
    assert grown.steps == before.steps

    joined = plan_memory(joined_plan(
        Step("1", "k", (0,), writes=(0,)), Step("2", "k", (1,), writes=(1,)),
        Step("3", "k", (2, 3), writes=(3,))), "slots", alignment=64)
    parts = memory.in_same_slots(joined, [
        dataclasses.replace(b, nbytes=2 * b.nbytes, part_offset=2 * b.part_offset)
        for b in joined.buffers], 64)
    assert [x.offset for x in parts.buffers] == [0, 256, 0, 0]
    assert parts.buffers[0].slot == parts.buffers[1].slot == parts.buffers[2].slot
    assert parts.slots[parts.buffers[2].slot] == 384 == 2 * 192


@pytest.mark.parametrize("level", MEMORIES)
def test_parts_lie_in_their_whole(level):
    plan = plan_memory(joined_plan(
        Step("1", "k", (3,), writes=(3,)), Step("2", "k", (3, 0), writes=(0,)),
        Step("3", "k", (1,), writes=(1,)), Step("4", "k", (2,), writes=()),
        Step("5", "k", (0,), writes=())), "arena", level)
    a, b, y, z = plan.buffers
    assert (a.slot, b.slot, y.slot) == (0, 0, 0)
    assert (a.offset, b.offset) == (y.offset, y.offset + 128)
    assert z.offset + z.nbytes <= y.offset or y.offset + y.nbytes <= z.offset
    assert [(i, life.first, life.last) for i, life in memory.lives(plan)] == [(3, 0, 1), (2, 1, 4)]


def test_a_part_that_is_read_before_it_is_written():
    with pytest.raises(VerifyError, match="step '1' reads buffer 1 'b' before any step writes it"):
        plan_memory(joined_plan(Step("1", "k", (1, 3), writes=(3,))), "arena")
