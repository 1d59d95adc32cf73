"""GPU generations, parsed from what drivers call their devices.

    parse("Mali-G78 r0p1")                -> arm, mali, valhall, generation 3, model G78
    parse("QUALCOMM Adreno(TM) 640")      -> qualcomm, adreno, a6xx, generation 6, model 640

Tables instead of names in conditions: a row of the quirk table speaks of Bifrost, not of fourteen
GPUs. What no table knows has an empty architecture and generation 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    """A GPU's place in its vendor's line. Empty fields are unknown.

    `generation` counts the vendor's architectures (Midgard 1, Bifrost 2, Valhall 3, 5th Gen 4);
    `step` the redesigns within one (G77 is Valhall's first, G610 its third), 0 where there is one.
    """

    vendor: str = ""             # "arm", "qualcomm", "imagination", "intel", "amd", "nvidia", ...
    family: str = ""             # "mali", "adreno", "powervr", ...
    architecture: str = ""       # "valhall", "a6xx", "rogue", "gen9", ...
    generation: int = 0
    step: int = 0
    model: str = ""              # "G78", "640", "GE8320", "HD 630", "H200"

    def __str__(self) -> str:
        words = " ".join(w for w in (self.vendor, self.family, self.model) if w)
        place = f" ({self.architecture}, generation {self.generation})" if self.architecture else ""
        return words + place


@dataclass(frozen=True)
class Rule:
    """How one line of devices is recognised: `pattern`'s first group is the model, cleaned;
    `places` maps patterns of whole models to (architecture, generation, step).
    """

    vendor: str
    family: str
    pattern: str
    places: tuple[tuple[str, str, int, int], ...]


RULES: tuple[Rule, ...] = (
    Rule("arm", "mali", r"\b(?:mali|immortalis)[- ]([tg]\d+)", (
        (r"T6\d\d", "midgard", 1, 1),
        (r"T72\d", "midgard", 1, 2),
        (r"T76\d", "midgard", 1, 3),
        (r"T8\d\d", "midgard", 1, 4),
        (r"G(71|51)", "bifrost", 2, 1),
        (r"G(72|31)", "bifrost", 2, 2),
        (r"G(76|52)", "bifrost", 2, 3),
        (r"G(77|57)", "valhall", 3, 1),
        (r"G(78|68)", "valhall", 3, 2),
        (r"G[3567]10", "valhall", 3, 3),
        (r"G[67]15", "valhall", 3, 4),
        (r"G[67]20", "5th-gen", 4, 1),
        (r"G[679]25|G1", "5th-gen", 4, 2),
    )),
    Rule("qualcomm", "adreno", r"\badreno(?:\s*\(tm\))?[- ]*((?:x\d-)?\d{2,3})", (
        (r"X1-\d+", "a7xx", 7, 0),
        (r"X2-\d+", "a8xx", 8, 0),
        *((rf"{n}\d\d", f"a{n}xx", n, 0) for n in range(2, 9)),
    )),
    Rule("imagination", "powervr", r"\bpowervr\s+(?:\w+-series\s+|rogue\s+)?"
                                   r"([a-z]{1,4}[- ]?[\w-]*)", (
        (r"SGX.*", "sgx", 5, 0),
        (r"G6\d+", "rogue", 6, 6),
        (r"G[XET]7\d+|G[XT]\d7\d+", "rogue", 6, 7),
        (r"G[ET]8\d+", "rogue", 6, 8),
        (r"GM9\d+", "rogue", 6, 9),
        (r"[ABC]XM.*|AXE.*", "rogue", 6, 10),
        (r"BX[ETS].*", "rogue", 6, 11),
        (r"[CD]X[TM].*", "photon", 7, 0),
    )),
    Rule("broadcom", "videocore", r"\b(?:videocore(?:[ -]*)|v3d )\(?([ivx]+|\d\.\d)\b", (
        (r"IV|2\.1", "videocore-iv", 4, 0),
        (r"VI|4\.[12]", "videocore-vi", 6, 0),
        (r"VII|7\.1", "videocore-vii", 7, 0),
    )),
    Rule("intel", "uhd", r"\b(?:intel.*?|^)(u?hd graphics(?: \w?\d+)?|iris[^\[]*|arc.*)", (
        (r"HD GRAPHICS 4\d\d\d|HD GRAPHICS 5[0-4]00", "gen7", 7, 0),
        (r"HD GRAPHICS (5[356]00|P?5[67]00|6000)", "gen8", 8, 0),
        (r"U?HD GRAPHICS P?(5[1-3]\d|6[0-3]\d)|IRIS.*(5[458]0|6[45]\d).*", "gen9", 9, 0),
        (r".*\bXE\b.*|UHD GRAPHICS 7\d\d", "xe", 12, 1),
        (r"ARC.*", "xe-hpg", 12, 2),
    )),
    Rule("amd", "radeon", r"\b(gfx[0-9a-f]{3,4})\b", (
        (r"GFX6..", "gcn1", 1, 0),
        (r"GFX7..", "gcn2", 2, 0),
        (r"GFX8..", "gcn3", 3, 0),
        (r"GFX90[0246C9]", "gcn5", 5, 0),
        (r"GFX9(08|0A|4.)", "cdna", 6, 0),
        (r"GFX10[01].", "rdna1", 7, 0),
        (r"GFX103.", "rdna2", 8, 0),
        (r"GFX11..", "rdna3", 9, 0),
        (r"GFX12..", "rdna4", 10, 0),
    )),
    Rule("amd", "radeon", r"\b(tahiti|pitcairn|capeverde|oland|hainan|bonaire|hawaii|tonga|fiji|"
                          r"ellesmere|baffin|polaris\d+|vega\d*)\b", (
        (r"TAHITI|PITCAIRN|CAPEVERDE|OLAND|HAINAN", "gcn1", 1, 0),
        (r"BONAIRE|HAWAII", "gcn2", 2, 0),
        (r"TONGA|FIJI", "gcn3", 3, 0),
        (r"ELLESMERE|BAFFIN|POLARIS\d+", "gcn4", 4, 0),
        (r"VEGA\d*", "gcn5", 5, 0),
    )),
    Rule("nvidia", "geforce", r"\bnvidia\s+([\w -]+)|\b(?:geforce|tesla|quadro)\s+([\w -]+)", (
        (r".*\b(B[12]00|GB\d+|RTX 50\d\d).*", "blackwell", 10, 0),
        (r".*\b(H[12]00|H800|GH200).*", "hopper", 9, 0),
        (r".*\b(L4|L40S?|RTX 40\d\d|RTX 6000 ADA).*", "ada", 8, 9),
        (r".*\b(A100|A30).*", "ampere", 8, 0),
        (r".*\b(A10G?|A40|RTX 30\d\d|RTX A\d000).*", "ampere", 8, 6),
        (r".*\b(T4|GTX 16\d\d|RTX 20\d\d).*", "turing", 7, 5),
        (r".*\bV100.*", "volta", 7, 0),
        (r".*\b(P100|GTX 10\d\d|P40|P4).*", "pascal", 6, 0),
    )),
)
CPU_RUNTIMES = (                             # (platform, vendor, family)
    (r"portable computing language|pocl", "pocl", "cpu"),
    (r"intel\(r\) opencl", "intel", "cpu"),
    (r"oclgrind", "oclgrind", "simulator"),
)


def parse(name: str, platform: str = "", details: str = "") -> Generation:
    """The generation of a device that calls itself `name`; `details` are more texts to look in
    (Adreno drivers name the model in the device's version), `platform` tells CPU runtimes.
    """
    for text in (name, details):
        for rule in RULES:
            found = re.search(rule.pattern, text, re.I)
            if found:
                return _placed(rule, next(g for g in found.groups() if g))
    for pattern, vendor, family in CPU_RUNTIMES:
        if re.search(pattern, platform, re.I):
            return Generation(vendor, family, "cpu" if family == "cpu" else "")
    return Generation()


def _placed(rule: Rule, model: str) -> Generation:
    model = " ".join(model.split()).upper()
    for pattern, architecture, generation, step in rule.places:
        if re.fullmatch(pattern, model):
            return Generation(rule.vendor, rule.family, architecture, generation, step, model)
    return Generation(rule.vendor, rule.family, model=model)
