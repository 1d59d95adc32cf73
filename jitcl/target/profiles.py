"""Devices that aren't there, as data: what `device="profile:mali-g610"` compiles for.

Limits are public ones of one chip with that GPU (cores differ between chips); drivers, one
plausible release. The quirk table holds for them as for the device itself.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from jitcl.errors import DeviceError
from jitcl.target.driver import Driver
from jitcl.target.quirks import Quirk, applying
from jitcl.target.target import Target

GIB = 1 << 30
KHR = ("cl_khr_byte_addressable_store cl_khr_global_int32_base_atomics "
       "cl_khr_local_int32_base_atomics")


@dataclass(frozen=True)
class Profile:
    """A device as its driver describes it, before quirks; `chip`: where that GPU is found."""

    name: str
    chip: str
    driver: Driver
    reported: Target

    @property
    def quirks(self) -> tuple[Quirk, ...]:
        """The rows of the quirk table that hold for it."""
        return applying(self.driver, self.reported)

    @property
    def target(self) -> Target:
        """The device as code generation sees it."""
        target = self.reported
        for quirk in self.quirks:
            target = quirk.apply(target)
        return target


def _profile(name: str, chip: str, device: str, platform: str, vendor: str, version: str,
             details: str, *, extensions: str = "", cores: int, group: int, local_kib: int,
             memory: int, fp16: bool = True, sizes: tuple[int, ...] = (),
             pixels: int = 1 << 16, multiply_add: str = "fma") -> Profile:
    """`cores` compute units, `group` work-items a work-group, `memory` bytes that OpenCL sees,
    `pixels` of the largest image over a buffer. `multiply_add`: where no device could be asked, as
    Mesa's compilers have it: fma() is a routine of some hundred instructions on Adreno and Midgard.
    """
    listed = " ".join(filter(None, (KHR, "cl_khr_fp16" if fp16 else "", extensions)))
    driver = Driver(platform, version, device, details=details, extensions=listed)
    target = Target(
        kind="opencl", name=device, vendor=vendor, driver=f"{details} / {version}",
        device_type="gpu", compute_units=cores, vector_width=4, registers=128,
        local_memory=local_kib << 10, local_is_real=True, max_work_group=group,
        max_work_item_sizes=sizes or (group, group, group), global_memory=memory,
        max_allocation=memory // 4, alignment=128, fp16_arithmetic=fp16, fp64=False,
        multiply_add=multiply_add, image_pixels=pixels)
    return Profile(name, chip, driver, target)


def _mali(model: str, chip: str, release: str, language: str, cores: int, group: int,
          extensions: str = "cl_arm_core_id cl_arm_import_memory", revision: str = "",
          multiply_add: str = "fma") -> Profile:
    version = f"OpenCL {language} v1.{release}-01eac0.0123456789abcdef"
    device = f"Mali-{model}{revision}"
    return _profile(f"mali-{model.lower()}", chip, device, "ARM Platform", "ARM", language, version,
                    extensions=extensions, cores=cores, group=group, local_kib=32, memory=4 * GIB,
                    multiply_add=multiply_add)


def _adreno(model: str, chip: str, compiler: str, cores: int, memory: int) -> Profile:
    version = f"OpenCL 2.0 QUALCOMM build: commit #0123456 changeid # Compiler {compiler}"
    return _profile(f"adreno-{model}", chip, "QUALCOMM Adreno(TM)", "QUALCOMM Snapdragon(TM)",
                    "QUALCOMM", version, f"OpenCL 2.0 Adreno(TM) {model}", cores=cores, group=1024,
                    extensions="cl_qcom_perf_hint cl_qcom_extended_query_image_info",
                    local_kib=32, memory=memory, pixels=1 << 27, multiply_add="mad")


CONTROLS = "cl_arm_core_id cl_arm_import_memory cl_arm_scheduling_controls"
PROFILES: dict[str, Profile] = {p.name: p for p in (
    _mali("T860", "Rockchip RK3399", "r14p0", "1.2", 4, 256, "cl_arm_core_id",
          multiply_add="mad"),
    _mali("G52", "Amlogic S922X", "r16p0", "2.0", 2, 384, revision=" r1p0"),
    _mali("G76", "HiSilicon Kirin 980", "r18p0", "2.0", 10, 384, revision=" r0p0"),
    _mali("G78", "Google Tensor", "r32p1", "3.0", 20, 512, CONTROLS, " r0p1"),
    _mali("G610", "Rockchip RK3588", "g6p0", "3.0", 4, 1024, CONTROLS, " r0p0"),
    _mali("G715", "Google Tensor G3", "r44p0", "3.0", 7, 1024, CONTROLS, " r0p0"),
    _adreno("530", "Snapdragon 820", "E031.31.00.00", 4, 2 * GIB),
    _adreno("640", "Snapdragon 855", "E031.37.12.01", 2, 3 * GIB),
    _adreno("740", "Snapdragon 8 Gen 2", "E031.41.03.36", 6, 4 * GIB),
    _profile("powervr-ge8320", "MediaTek Helio P22", "PowerVR Rogue GE8320", "PowerVR",
             "Imagination Technologies", "1.11@5425693", "OpenCL 1.2", cores=1, group=512,
             local_kib=4, memory=GIB),
    _profile("intel-hd-630", "Core i7-7700", "Intel(R) HD Graphics 630", "Intel(R) OpenCL HD "
             "Graphics", "Intel(R) Corporation", "22.43.24595", "OpenCL 3.0 NEO", cores=24,
             group=256, local_kib=64, memory=6 * GIB, extensions="cl_khr_subgroups"),
    _profile("videocore-vi", "Raspberry Pi 4", "V3D 4.2", "rusticl", "Broadcom", "24.2.8",
             "OpenCL 3.0", cores=8, group=256, local_kib=16, memory=GIB, fp16=False),
    _profile("videocore-vii", "Raspberry Pi 5", "V3D 7.1", "rusticl", "Broadcom", "24.2.8",
             "OpenCL 3.0", cores=16, group=256, local_kib=16, memory=2 * GIB, fp16=False),
)}


def find_profile(name: str) -> Profile:
    """The profile of this name; DeviceError lists all."""
    found = PROFILES.get(name.strip().lower())
    if found is None:
        close = difflib.get_close_matches(name, PROFILES, 1)
        hint = f"\n  Did you mean profile:{close[0]}?" if close else ""
        raise DeviceError(f"no device profile '{name}'\n  There are: {', '.join(PROFILES)}{hint}")
    return found
