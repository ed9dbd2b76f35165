"""Memory bandwidth of GPUs in GB/s (10^9 bytes), as their makers' data sheets say it. Found by a part of a name as nvidia-smi or a
person writes it; the first that fits decides, so the more special ones stand first."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Bandwidth:
    name: str
    gb_s: float
    source: str


_SHEET = "NVIDIA data sheet, {}"
_ROWS: tuple[tuple[str, str, float, str], ...] = (
    (r"gb10|dgx spark", "GB10 (DGX Spark)", 273, "DGX Spark: 256 bit LPDDR5x"),
    (r"rtx pro 6000.*server", "RTX PRO 6000 Blackwell Server", 1597, "RTX PRO 6000 Blackwell Server Edition: GDDR7"),
    (r"rtx pro 6000", "RTX PRO 6000 Blackwell", 1792, "RTX PRO 6000 Blackwell Workstation Edition: 512 bit GDDR7"),
    (r"rtx pro 5000", "RTX PRO 5000 Blackwell", 1344, "RTX PRO 5000 Blackwell: GDDR7"),
    (r"rtx 6000 ada", "RTX 6000 Ada", 960, "RTX 6000 Ada Generation: GDDR6"),
    (r"rtx a6000", "RTX A6000", 768, "RTX A6000: GDDR6"),
    (r"rtx 5090", "GeForce RTX 5090", 1792, "GeForce RTX 5090: 512 bit GDDR7"),
    (r"rtx 4090", "GeForce RTX 4090", 1008, "GeForce RTX 4090: 384 bit GDDR6X"),
    (r"rtx 3090 ti", "GeForce RTX 3090 Ti", 1008, "GeForce RTX 3090 Ti: 384 bit GDDR6X"),
    (r"rtx 3090", "GeForce RTX 3090", 936, "GeForce RTX 3090: 384 bit GDDR6X"),
    (r"b200", "B200", 8000, "B200: HBM3e"),
    (r"gh200", "GH200", 4000, "GH200 with 96 GB: HBM3"),
    (r"h200", "H200", 4800, "H200: HBM3e"),
    (r"h100.*nvl", "H100 NVL", 3900, "H100 NVL: HBM3"),
    (r"h100.*pcie", "H100 PCIe", 2000, "H100 PCIe: HBM2e"),
    (r"h100", "H100 SXM", 3350, "H100 SXM: HBM3"),
    (r"a100.*pcie.*80", "A100 80GB PCIe", 1935, "A100 80GB PCIe: HBM2e"),
    (r"a100.*80", "A100 80GB SXM", 2039, "A100 80GB SXM: HBM2e"),
    (r"a100", "A100 40GB", 1555, "A100 40GB: HBM2"),
    (r"l40s", "L40S", 864, "L40S: GDDR6"),
    (r"\bl40\b", "L40", 864, "L40: GDDR6"),
    (r"\bl4\b", "L4", 300, "L4: GDDR6"),
    (r"\ba10\b", "A10", 600, "A10: GDDR6"),
    (r"\bt4\b", "T4", 320, "T4: GDDR6"),
)
KNOWN = tuple(
    (re.compile(pattern), Bandwidth(name, gb_s, _SHEET.format(about))) for pattern, name, gb_s, about in _ROWS
)
EVERY = tuple(each for _, each in KNOWN)


def of(hardware: str | None) -> Bandwidth | None:
    """Of the GPU that is named in a text such as `2 × DGX Spark (GB10)`; None where none is, or two kinds are."""
    text = (hardware or "").lower().replace("-", " ").replace("_", " ")
    found = [each for pattern, each in KNOWN if pattern.search(text)]
    parts = [part for part in re.split(r"\s*(?:\+|,| and )\s*", text) if part]
    each_part = {one.name for part in parts if (one := _first(part)) is not None}
    return found[0] if found and len(each_part) <= 1 else None


def count_of(hardware: str | None) -> int:
    """How many machines or GPUs a text such as `2 × DGX Spark (GB10)` names; 1 where it says nothing."""
    found = re.match(r"\s*(\d{1,4})\s*[x×]\s*\S", hardware or "", re.IGNORECASE)
    return int(found[1]) if found else 1


def _first(text: str) -> Bandwidth | None:
    return next((each for pattern, each in KNOWN if pattern.search(text)), None)
