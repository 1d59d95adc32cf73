"""Which lanes of a Valhall GPU read which lines of memory, by the registers of Mesa's last listing.

The machine code leaves lines out; the listing before it has all: blocks of instructions with their
registers, and which block is after which. Of each register is followed by how much the values of
two lanes differ that are neighbours along a dimension of the launch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import prod

WAVE = 16                                    # lanes, numbered along x first
LINE = 64                                    # bytes
Strides = tuple[int | None, ...]             # along x, y, z; 0: alike, None: anything
ALIKE: Strides = (0, 0, 0)
ANY: Strides = (None, None, None)
# At first: local ids, two of 16 bits in a register; those of the group; global ids
IDS: dict[int, Strides] = {
    55: (None, None, 0), 56: (0, 0, None), 57: ALIKE, 58: ALIKE, 59: ALIKE,
    60: (1, 0, 0), 61: (0, 1, 0), 62: (0, 0, 1)}
# Instructions whose results differ only where an operand does; those of others may in any way
PLAIN = set("""MOV LSHIFT_OR LSHIFT_AND LSHIFT_XOR RSHIFT_OR IADD IADD_IMM ISUB IMUL IABS SHADDX
    U16_TO_U32 U32_TO_F32 S32_TO_F32 F16_TO_F32 F32_TO_U32 F32_TO_S32 V2F32_TO_V2F16 CSEL ICMP_OR
    ICMP_AND FCMP_OR FCMP_AND FMA FADD FADD_IMM FMIN FMAX FRCP FRSQ MKVEC MUX CLZ LOAD""".split())
# Bytes of the constants that shifts are by: u258 and u258[1] are two words, u259 the next
BYTES = {f"u258{b}": k for b, k in ((".b3", 1), (".b0", 0))} | {"u256.b0": 0} | {
    f"u{260 + k // 8}{'[1]' if k % 8 > 3 else ''}.b{k % 4}": k for k in range(32)}


def addresses(text: str) -> list[Strides]:
    """Of each load and store, in order. What lanes read from one address is alike, too."""
    blocks, after = listed(text)
    entered: dict[str, dict[int, Strides]] = {"block0": {r: IDS.get(r, ANY) for r in range(64)}}
    parted: dict[str, Strides] = defaultdict(lambda: ALIKE)  # lanes that meet came by several ways
    found: dict[tuple[str, int], Strides] = {}
    todo = ["block0"]
    while todo:
        name = todo.pop()
        now = {r: _beside(s, parted[name]) for r, s in entered[name].items()}
        for at, line in enumerate(blocks[name]):
            left, _, right = line.rpartition(" = ")
            op, _, operands = re.sub(r"\.flow\d+|\^", "", right).partition(" ")
            each = [x.strip() for x in operands.split(",")] if operands else []
            if re.match(r"(LOAD|STORE)\.", op):
                low, high, offset = (_value(x, now) for x in each[-3:])
                value = _mixed(low, high, offset)
                # a wave's addresses lie within 4 GiB of each other: their upper words tell nothing
                # else than the lower ones, of which they are carried
                found[name, at] = low if value == _mixed(low) else ANY
            else:
                value = _result(op, each, now)
            for k, r in enumerate(map(int, re.findall(r"\br(\d+)", left))):
                # the upper word of a sum; a half of a register
                now[r] = _mixed(value) if k else _mixed(value, now[r]) if "." in left else value
            if op.startswith("BRANCH") and len(after[name]) == 2:
                way = _mixed(*(_value(x, now) for x in each[:-1]))
                for block in set.intersection(*(_reached(x, after) for x in after[name])):
                    both = _mixed(way, parted[block])
                    if both != parted[block]:
                        parted[block] = both
                        todo += [block] if block in entered else []
        for block in after[name]:
            old = entered.get(block, now)
            new = {r: tuple(a if a == b else None for a, b in zip(s, old[r], strict=True))
                   for r, s in now.items()}
            if new != entered.get(block):
                entered[block] = new
                todo.append(block)
    return [found.get((name, at), ANY) for name, lines in blocks.items()
            for at, line in enumerate(lines) if re.match(r"(\S+ = )?(LOAD|STORE)\.", line)]


def _result(op: str, each: list[str], now: dict[int, Strides]) -> Strides:
    """What an instruction gives; of a pair of words the lower one."""
    values = [_value(x, now) for x in each]
    if op == "MOV.i32" or re.fullmatch(r"IADD(_IMM)?\.[isu]32", op):
        return _added(*values)
    if op == "SHADDX.s64" and each[2].startswith("shift:"):
        return _added(values[0], _times(values[1], 1 << int(each[2][6:])))
    if op == "LSHIFT_OR.i32" and each[1] == "u256" and each[2] in BYTES:
        return _times(values[0], 1 << BYTES[each[2]])
    if re.match(r"CSEL\.[su]32\.[lg]", op) and each[:2] == each[2:] and ALIKE in values[:2]:
        return _added(*values[:2])               # the smaller or larger: all lanes' beyond an end
    return _mixed(*values) if op.split(".")[0] in PLAIN else ANY


def _value(operand: str, now: dict[int, Strides]) -> Strides:
    """Of a register, of which the first of several; constants and arguments are alike."""
    if register := re.match(r"r(\d+)(:r\d+)*$", operand):
        return now[int(register[1])]
    registers = re.findall(r"\br(\d+)", operand)             # a part, or what is made of it
    known = registers or re.match(r"u\d+|(index|shift|byte_offset):|block", operand)
    return _mixed(*(now[int(r)] for r in registers)) if known else ANY


def _mixed(*values: Strides) -> Strides:
    return tuple(None if any(s != 0 for s in along) else 0 for along in zip(*values)) or ALIKE


def _beside(value: Strides, way: Strides) -> Strides:
    return tuple(s if w == 0 else None for s, w in zip(value, way, strict=True))


def _added(*values: Strides) -> Strides:
    return tuple(None if None in along else sum(along) for along in zip(*values))


def _times(value: Strides, factor: int) -> Strides:
    return tuple(s if s is None else s * factor for s in value)


def listed(text: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(instructions, blocks after it) of each block of the last listing, by name."""
    blocks: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for line in text[text.rindex("block0 {"):].splitlines():
        if begins := re.match(r"(block\d+) \{", line):
            lines = blocks[begins[1]] = []
        elif line.startswith("}"):
            after[next(reversed(blocks))] = re.findall(r"block\d+", line.partition(" from ")[0])
        elif line.startswith("        "):
            lines.append(line.strip())
        elif line.startswith("   "):                         # machine code
            break
    return blocks, after


def _reached(block: str, after: dict[str, list[str]]) -> set[str]:
    found, todo = {block}, [block]
    while todo:
        new = set(after[todo.pop()]) - found
        found |= new
        todo += new
    return found


def lines(strides: Strides, width: int, group: tuple[int, ...]) -> int:
    """Lines that a wave of a group touches when each lane reads `width` bytes, at a multiple of
    that: the most of its waves, wherever they begin. A line for each lane where neighbours may be
    anywhere."""
    x, y, z = (*group, 1, 1)[:3]
    places = [(i % x, i // x % y, i // (x * y)) for i in range(prod((x, y, z)))]
    most = 0
    for first in range(0, len(places), WAVE):
        runs: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for place in places[first:first + WAVE]:
            runs[tuple(p for p, s in zip(place, strides) if s is None)].add(
                sum(p * (s or 0) for p, s in zip(place, strides)))
        most = max(most, sum(_touched(sorted(at), width) for at in runs.values()))
    return most


def _touched(offsets: list[int], width: int) -> int:
    """Lines of accesses at these offsets: of each run of them without a gap."""
    starts = [a for before, a in zip([None, *offsets], offsets)
              if before is None or a > before + width]
    ends = [b + width for b, after in zip(offsets, [*offsets[1:], None])
            if after is None or after > b + width]
    return sum(-(-(end - start + LINE - width) // LINE)
               for start, end in zip(starts, ends, strict=True))
