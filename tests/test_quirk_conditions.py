"""How rows of the quirk table are matched: generations parsed from names, versions, exceptions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitcl.target import Target
from jitcl.target.driver import version_holds
from jitcl.target.generations import Generation, parse
from jitcl.target.quirks import Driver, When

# -- generations -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "wanted"), [
    ("Mali-T628", ("arm", "midgard", 1, 1, "T628")),
    ("Mali-T760", ("arm", "midgard", 1, 3, "T760")),
    ("Mali-T860", ("arm", "midgard", 1, 4, "T860")),
    ("Mali-G31", ("arm", "bifrost", 2, 2, "G31")),
    ("Mali-G52 r1p0", ("arm", "bifrost", 2, 3, "G52")),
    ("Mali-G76 r0p0", ("arm", "bifrost", 2, 3, "G76")),
    ("Mali-G77", ("arm", "valhall", 3, 1, "G77")),
    ("Mali-G78 r0p1", ("arm", "valhall", 3, 2, "G78")),
    ("Mali-G610 r0p0", ("arm", "valhall", 3, 3, "G610")),
    ("Mali-G715", ("arm", "valhall", 3, 4, "G715")),
    ("Immortalis-G720", ("arm", "5th-gen", 4, 1, "G720")),
    ("Mali-G999", ("arm", "", 0, 0, "G999")),
    ("Adreno 330", ("qualcomm", "a3xx", 3, 0, "330")),
    ("QUALCOMM Adreno(TM) 640", ("qualcomm", "a6xx", 6, 0, "640")),
    ("Qualcomm(R) Adreno(TM) X1-85 GPU", ("qualcomm", "a7xx", 7, 0, "X1-85")),
    ("PowerVR SGX 544", ("imagination", "sgx", 5, 0, "SGX 544")),
    ("PowerVR Rogue GE8320", ("imagination", "rogue", 6, 8, "GE8320")),
    ("PowerVR Rogue GM9446", ("imagination", "rogue", 6, 9, "GM9446")),
    ("PowerVR B-Series BXM-8-256", ("imagination", "rogue", 6, 10, "BXM-8-256")),
    ("PowerVR D-Series DXT-48-1536", ("imagination", "photon", 7, 0, "DXT-48-1536")),
    ("V3D 4.2", ("broadcom", "videocore-vi", 6, 0, "4.2")),
    ("VideoCore VII", ("broadcom", "videocore-vii", 7, 0, "VII")),
    ("Intel(R) HD Graphics 4600", ("intel", "gen7", 7, 0, "HD GRAPHICS 4600")),
    ("Intel(R) HD Graphics 530", ("intel", "gen9", 9, 0, "HD GRAPHICS 530")),
    ("Intel(R) UHD Graphics 620 [0x5917]", ("intel", "gen9", 9, 0, "UHD GRAPHICS 620")),
    ("Intel(R) UHD Graphics 770", ("intel", "xe", 12, 1, "UHD GRAPHICS 770")),
    ("Intel(R) Iris(R) Xe Graphics", ("intel", "xe", 12, 1, "IRIS(R) XE GRAPHICS")),
    ("Intel(R) Arc(TM) A770 Graphics", ("intel", "xe-hpg", 12, 2, "ARC(TM) A770 GRAPHICS")),
    ("gfx90a:sramecc+:xnack-", ("amd", "cdna", 6, 0, "GFX90A")),
    ("gfx1030", ("amd", "rdna2", 8, 0, "GFX1030")),
    ("Tahiti", ("amd", "gcn1", 1, 0, "TAHITI")),
    ("NVIDIA H200", ("nvidia", "hopper", 9, 0, "H200")),
    ("Tesla T4", ("nvidia", "turing", 7, 5, "T4")),
    ("AMD EPYC 9R14", ("", "", 0, 0, "")),
])
def test_generations(name, wanted):
    found = parse(name)
    assert (found.vendor, found.architecture, found.generation, found.step, found.model) == wanted


def test_generations_that_stand_elsewhere():
    adreno = parse("QUALCOMM Adreno(TM)", "QUALCOMM", "OpenCL 2.0 Adreno(TM) 530")
    assert (adreno.architecture, adreno.model) == ("a5xx", "530")
    assert parse("pthread-AMD EPYC", "Portable Computing Language").vendor == "pocl"
    assert parse("AMD EPYC", "Intel(R) OpenCL") == Generation("intel", "cpu", "cpu")
    assert str(parse("Mali-G78 r0p1")) == "arm mali G78 (valhall, generation 3)"


# -- conditions --------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "conditions", "holds"), [
    ((3, 0), "<3.2", True),
    ((3, 2), "<3.2", False),
    ((3, 10), "<3.2", False),
    ((3, 1, 2), "==3.1", True),
    ((3, 1, 2), "!=3.1", False),
    ((3, 1, 2), ">3.1", False),
    ((3, 2), ">3.1", True),
    ((3,), "<=3", True),
    ((24, 20), ">=23.20,<24.20", False),
    ((23, 20, 16), ">=23.20, <24.20", True),
    ((14, 0), ">=r13p0,<=r14p0", True),
    ((31, 38, 11, 0), "<E031.38.11", False),
    ((), "<3.2", False),
    ((), "", True),
])
def test_versions(number, conditions, holds):
    assert version_holds(number, conditions) is holds


@pytest.mark.parametrize("wrong", ["3.2", "=3.2", "<", "<new", "<3,4"])
def test_a_condition_that_is_none(wrong):
    with pytest.raises(ValueError, match="no condition on a version"):
        version_holds((1,), wrong)


def test_where_versions_stand():
    mali = Driver("ARM Platform", "1.2", "Mali-T860", details="OpenCL 1.2 v1.r14p0-01rel0.e4cc")
    assert mali.number == (14, 0)
    assert replace(mali, device="Mali-G610 r0p0", details="OpenCL 3.0 v1.g6p0-01eac0").number == ()
    adreno = Driver("QUALCOMM", "OpenCL 2.0 build: Compiler E031.37.12.01", "Adreno(TM) 640")
    assert adreno.number == (31, 37, 12, 1)
    assert Driver("NVIDIA CUDA", "550.54.15", "NVIDIA H200").number == (550, 54, 15)


def test_exceptions_and_lists():
    when = When(vendor="arm", compute_units=(3, 4), unless=(When(models="G72"),))
    four = Target("opencl", "x", compute_units=4)
    assert when.holds(Driver("", "", "Mali-G76"), four)
    assert not when.holds(Driver("", "", "Mali-G72"), four)
    assert not when.holds(Driver("", "", "Mali-G76"), replace(four, compute_units=5))
    assert str(when) == "vendor arm, compute_units 3 or 4, unless models G72"
