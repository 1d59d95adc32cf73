"""What a machine is, which OpenCL drivers its parts could have, and how to get them.

All that is looked at are files; `root` is where they are looked for, so that tests can pose as
other machines.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

# A GPU's vendor in /sys/class/drm/*/device/vendor (PCI's numbers).
PCI = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
# The kernel's driver of GPUs that are no PCI devices: whose they are.
DRM = {"panfrost": "Mali", "panthor": "Mali", "lima": "Mali", "mali": "Mali", "msm": "Adreno",
       "msm_drm": "Adreno", "v3d": "VideoCore", "etnaviv": "Vivante", "nouveau": "NVIDIA"}
NODES = {"dev/mali0": "Mali", "dev/kgsl-3d0": "Adreno", "dev/nvidiactl": "NVIDIA"}
# how the names of OpenCL platforms and devices begin, or what they contain, by vendor
NAMES = {"NVIDIA": ("nvidia",), "AMD": ("amd", "radeon", "gfx"), "Intel": ("intel",),
         "Mali": ("mali", "panfrost", "panthor", "arm"), "Adreno": ("adreno", "qualcomm", "fd"),
         "VideoCore": ("v3d",), "Vivante": ("vivante", "etnaviv")}


@dataclass(frozen=True)
class System:
    """kind: "debian", "android", "linux" or another system's name. board: of the device tree, ""
    on a PC. gpus: vendors of the GPUs that the kernel knows, whether they have an OpenCL driver or
    not. closed: device files that this user may not open.
    """

    kind: str
    board: str
    gpus: tuple[str, ...]
    closed: tuple[str, ...] = ()

    @property
    def rk3588(self) -> bool:
        """Whether it is a board with Rockchip's RK3588 (Orange Pi 5, Rock 5, NanoPC-T6, ...)."""
        return "rk3588" in self.board


@dataclass(frozen=True)
class Finding:
    """What is missing or wrong, and what to do about it, line by line."""

    what: str
    do: tuple[str, ...]


def look(root: Path = Path("/")) -> System:
    """What this machine is."""
    gpus: dict[str, None] = {}
    closed = []
    for card in sorted(root.glob("sys/class/drm/renderD*")):
        vendor = _text(card / "device/vendor")
        driver = card / "device/driver"
        name = os.path.basename(os.readlink(driver)) if driver.is_symlink() else ""
        found = PCI.get(vendor) or DRM.get(name)
        if found:
            gpus[found] = None
        node = root / "dev/dri" / card.name
        if node.exists() and not os.access(node, os.R_OK | os.W_OK):
            closed.append(f"/dev/dri/{card.name}")
    for path, vendor in NODES.items():
        if (root / path).exists():
            gpus[vendor] = None
            if not os.access(root / path, os.R_OK | os.W_OK):
                closed.append(f"/{path}")
    board = _text(root / "proc/device-tree/compatible").replace("\0", " ").strip()
    return System(_kind(root), board, tuple(gpus), tuple(closed))


def _kind(root: Path) -> str:
    if platform.system() != "Linux" and platform.system() != "Android":
        return platform.system().lower()
    if (root / "system/build.prop").exists() or (root / "data/data/com.termux").exists():
        return "android"
    release = _text(root / "etc/os-release").lower()
    debian = (root / "etc/debian_version").exists() or any(
        word in release for word in ("id=debian", "id=ubuntu", "id_like=debian", "armbian"))
    return "debian" if debian else "linux"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def missing_drivers(system: System, offered: Collection[str]) -> list[Finding]:
    """What stands between this machine and its GPUs; `offered`: names of the OpenCL devices and
    platforms that there are.
    """
    names = [name.lower() for name in offered]
    found = []
    if system.closed:
        found.append(Finding(
            f"this user may not open {', '.join(system.closed)}",
            ("sudo usermod -aG render,video YOUR-NAME, then log in again",)))
    for gpu in system.gpus:
        if not any(word in name for name in names for word in NAMES[gpu]):
            found.append(Finding(f"a GPU of {gpu} is here, but no OpenCL driver for it",
                                 _how(gpu, system)))
    if not names:
        found.append(Finding("there is no OpenCL driver at all: jitcl's CPU path works without one",
                             _any_driver(system)))
    return found


def _how(gpu: str, system: System) -> tuple[str, ...]:
    """How to get a GPU's driver here."""
    if system.kind == "android":
        return _termux(gpu)
    if gpu == "Mali" and system.rk3588:
        return (
            "The vendor's driver (libmali for the Mali-G610, kernel 5.10 or 6.1 of Rockchip): "
            "install the package libmali-valhall-g610-*-gbm of your board's distribution, or of "
            "https://github.com/tsukumijima/libmali-rockchip/releases",
            "apt install ocl-icd-libopencl1, and name the library in a file: "
            "echo libmali.so.1 | sudo tee /etc/OpenCL/vendors/mali.icd",
            "With a mainline kernel (panthor) there is no libmali: apt install mesa-opencl-icd "
            "(Mesa 24.1 or later), and set RUSTICL_ENABLE=panfrost",
        )
    if system.kind != "debian":
        return {
            "NVIDIA": ("install the OpenCL part of NVIDIA's driver (libnvidia-opencl.so.1)",),
            "Intel": ("install intel-compute-runtime",),
        }.get(gpu, (f"install Mesa's OpenCL driver (rusticl) and set {_rusticl(gpu)}",))
    return {
        "NVIDIA": ("apt install nvidia-opencl-icd (of contrib and non-free), or the OpenCL part of "
                   "NVIDIA's own driver; in a container: "
                   "NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
        "AMD": ("apt install mesa-opencl-icd, and set RUSTICL_ENABLE=radeonsi",
                "or AMD's own: apt install rocm-opencl-icd, from AMD's repository"),
        "Intel": ("apt install intel-opencl-icd",),
        "Mali": ("the vendor's libmali of your board, named in /etc/OpenCL/vendors/mali.icd",
                 "or apt install mesa-opencl-icd, and set RUSTICL_ENABLE=panfrost"),
    }.get(gpu, (f"apt install mesa-opencl-icd, and set {_rusticl(gpu)}",))


def _rusticl(gpu: str) -> str:
    driver = {"AMD": "radeonsi", "Mali": "panfrost", "Adreno": "freedreno", "VideoCore": "v3d",
              "Vivante": "etnaviv", "NVIDIA": "nouveau"}.get(gpu, "1")
    return f"RUSTICL_ENABLE={driver}"


def _termux(gpu: str = "") -> tuple[str, ...]:
    mali = ("/vendor/lib64/egl/libGLES_mali.so is the driver where there is no libOpenCL.so",)
    return (
        "pkg install ocl-icd opencl-vendor-driver clinfo: the second points the loader at the "
        "phone's own driver, /vendor/lib64/libOpenCL.so",
        "where clinfo still finds none: export LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib "
        "(phones that keep apps from it, as Google's Pixel do, have no OpenCL for Termux)",
        *(mali if gpu == "Mali" else ()),
    )


def _any_driver(system: System) -> tuple[str, ...]:
    if system.kind == "android":
        return _termux()
    if system.kind == "debian":
        return ("for the CPU: apt install pocl-opencl-icd",
                *(("or pip install 'jitcl[intel]'",) if platform.machine() == "x86_64" else ()))
    if system.kind == "linux":
        return ("install pocl (for the CPU) or the vendor's driver with your package manager",)
    return ("see https://documen.tician.de/pyopencl/misc.html for drivers of this system",)


def broken_icds(folder: Path) -> list[Finding]:
    """Files that name a driver's library which is not there. Of a name without a folder, only the
    loader knows where it lies: those are passed.
    """
    found = []
    for icd in sorted(folder.glob("*.icd")):
        library = _text(icd)
        if not library:
            found.append(Finding(f"{icd} is empty or can't be read",
                                 ("write the path of a driver's library into it, or delete it",)))
        elif library.startswith("/") and not Path(library).exists():
            found.append(Finding(f"{icd} names {library}, which is not there",
                                 ("install the driver again, or delete the file",)))
    return found


__all__ = ["Finding", "System", "broken_icds", "look", "missing_drivers"]
