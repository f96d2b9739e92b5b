"""Device types: what they compute, hold and send, from their vendors' data sheets.

Peaks are those of dense matrices: data sheets often print twice as much, with sparsity.
Bandwidths are bytes a second in one direction per device; data sheets often print the sum of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from unicorn_mgr.profiles.problem import ProfileError

Level = Literal["32", "16", "8", "4"]
"""Bits of the numbers in most matrix products."""

GB = 1e9
TERA = 1e12


@dataclass(frozen=True, slots=True)
class Device:
    """One type of device."""

    name: str
    family: str
    """Devices of one family reach about the same share of their peaks."""
    memory_bytes: float
    peaks: Mapping[Level, float]
    """FLOP/s."""
    link: float
    """To devices it is tightly linked to (NVLink, Infinity Fabric, ICI), bytes/s."""
    network: float
    """To all others, bytes/s: the network card that its usual servers have per device."""
    linked: int
    """How many are tightly linked."""
    source: str

    def peak(self, level: Level) -> float:
        """FLOP/s at a precision; refuses one that the device does not have."""
        if level not in self.peaks:
            has = ", ".join(f"{bits} bits" for bits in self.peaks)
            raise ProfileError(f"precision: {self.name} does not compute with {level} bits: want one of {has}")
        return self.peaks[level]


def _device(
    name: str,
    family: str,
    memory_gb: float,
    teraflops: Mapping[Level, float],
    link_gb: float,
    network_gb: float,
    linked: int,
    source: str,
) -> Device:
    peaks = {level: peak * TERA for level, peak in teraflops.items()}
    return Device(name, family, memory_gb * GB, peaks, link_gb * GB, network_gb * GB, linked, source)


_VOLTA: Mapping[Level, float] = {"32": 15.7, "16": 125}
_AMPERE: Mapping[Level, float] = {"32": 156, "16": 312}
_HOPPER: Mapping[Level, float] = {"32": 495, "16": 989, "8": 1979}
_HOPPER_CARD: Mapping[Level, float] = {"32": 378, "16": 756, "8": 1513}
_BLACKWELL: Mapping[Level, float] = {"32": 1100, "16": 2250, "8": 4500, "4": 9000}
_BLACKWELL_ULTRA: Mapping[Level, float] = {"32": 1100, "16": 2250, "8": 4500, "4": 13500}
_GRACE_BLACKWELL: Mapping[Level, float] = {"32": 1250, "16": 2500, "8": 5000, "4": 10000}
_GRACE_BLACKWELL_ULTRA: Mapping[Level, float] = {"32": 1250, "16": 2500, "8": 5000, "4": 15000}
_CDNA3: Mapping[Level, float] = {"32": 654, "16": 1307, "8": 2615}

DEVICES: tuple[Device, ...] = (
    _device("V100-16GB", "volta", 16, _VOLTA, 150, 12.5, 8, "NVIDIA V100 data sheet, 2020"),
    _device("V100", "volta", 32, _VOLTA, 150, 12.5, 8, "NVIDIA V100 data sheet, 2020"),
    _device("A100-40GB", "ampere", 40, _AMPERE, 300, 25, 8, "NVIDIA A100 data sheet, 2021"),
    _device("A100", "ampere", 80, _AMPERE, 300, 25, 8, "NVIDIA A100 data sheet, 2021"),
    _device("A800", "ampere", 80, _AMPERE, 200, 25, 8, "NVIDIA A800 data sheet, 2022"),
    _device("H100", "hopper", 80, _HOPPER, 450, 50, 8, "NVIDIA H100 data sheet, SXM, 2023"),
    _device("H100-96GB", "hopper", 96, _HOPPER, 450, 50, 8, "NVIDIA H100 data sheet, SXM, 2023"),
    _device("H100-PCIE", "hopper", 80, _HOPPER_CARD, 64, 50, 8, "NVIDIA H100 data sheet, PCIe, 2023"),
    _device("H800", "hopper", 80, _HOPPER, 200, 50, 8, "NVIDIA H800 data sheet, 2023"),
    _device("H200", "hopper", 141, _HOPPER, 450, 50, 8, "NVIDIA H200 data sheet, SXM, 2024"),
    _device("GH200", "hopper", 96, _HOPPER, 450, 50, 1, "NVIDIA GH200 data sheet, 2023"),
    _device("H20", "hopper", 96, {"32": 74, "16": 148, "8": 296}, 450, 50, 8, "NVIDIA H20 data sheet, 2023"),
    _device("B200", "blackwell", 180, _BLACKWELL, 900, 50, 8, "NVIDIA HGX B200 data sheet, 2025"),
    _device("B300", "blackwell", 270, _BLACKWELL_ULTRA, 900, 100, 8, "NVIDIA HGX B300 data sheet, 2025"),
    _device("GB200", "blackwell", 186, _GRACE_BLACKWELL, 900, 50, 72, "NVIDIA GB200 NVL72 data sheet, 2025"),
    _device("GB300", "blackwell", 279, _GRACE_BLACKWELL_ULTRA, 900, 100, 72, "NVIDIA GB300 NVL72 data sheet, 2025"),
    _device("A10G", "ampere", 24, {"32": 35, "16": 70}, 32, 6.25, 4, "NVIDIA A10G data sheet, 2021"),
    _device("L4", "ada", 24, {"32": 60, "16": 121, "8": 242}, 32, 6.25, 8, "NVIDIA L4 data sheet, 2023"),
    _device("L40S", "ada", 48, {"32": 183, "16": 362, "8": 733}, 32, 25, 8, "NVIDIA L40S data sheet, 2023"),
    _device("MI250X", "cdna2", 128, {"32": 95.7, "16": 383}, 200, 25, 8, "AMD Instinct MI250X data sheet, 2021"),
    _device("MI300X", "cdna3", 192, _CDNA3, 448, 50, 8, "AMD Instinct MI300X data sheet, 2023"),
    _device("MI325X", "cdna3", 256, _CDNA3, 448, 50, 8, "AMD Instinct MI325X data sheet, 2024"),
    _device("P100", "pascal", 16, {"32": 10.6, "16": 21.2}, 80, 12.5, 8, "NVIDIA P100 data sheet, SXM, 2016"),
    _device("T4", "turing", 16, {"32": 8.1, "16": 65}, 16, 6.25, 4, "NVIDIA T4 data sheet, 2019"),
    _device("A10", "ampere", 24, {"32": 62.5, "16": 125}, 32, 6.25, 4, "NVIDIA A10 data sheet, 2021"),
    _device("A6000", "ampere", 48, {"32": 77.4, "16": 155}, 56, 12.5, 8, "NVIDIA RTX A6000 data sheet, 2021"),
    _device("TPU-V3", "tpu", 32, {"16": 123}, 82, 3, 1024, "Google Cloud documentation, TPU v3"),
    _device("TPU-V6E", "tpu", 32, {"16": 918, "8": 1836}, 200, 3, 256, "Google Cloud documentation, TPU v6e"),
    _device("TPU-V4", "tpu", 32, {"16": 275}, 150, 3, 4096, "Google Cloud documentation, TPU v4"),
    _device("TPU-V5E", "tpu", 16, {"16": 197, "8": 394}, 100, 3, 256, "Google Cloud documentation, TPU v5e"),
    _device("TPU-V5P", "tpu", 95, {"16": 459, "8": 918}, 300, 3, 8960, "Google Cloud documentation, TPU v5p"),
)

_RESPELLINGS = (
    (r"[^A-Z0-9]+", "-"),
    (r"TPU(?=V)", "TPU-"),
    (r"(?<=-)(\d+)-?GI?B?(?=-|$)", r"\1GB"),
    (r"MI300(?=-|$)", "MI300X"),
)


def device(name: str) -> Device:
    """The device of a type's name, however it is written: h100_80gb, NVIDIA H100 SXM5, A100-80GB."""
    words = name.upper()
    for written, meant in _RESPELLINGS:
        words = re.sub(written, meant, words)
    parts = set(words.split("-"))
    # The one of which most is named: H100-96GB has all that H100 has, and its memory.
    found = [d for d in DEVICES if parts.issuperset(d.name.split("-"))]
    if found:
        return max(found, key=lambda d: len(d.name.split("-")))
    known = ", ".join(d.name for d in DEVICES)
    raise ProfileError(f"device: {name!r} is not known: want one of {known}")


_LEVELS: tuple[tuple[Level, str], ...] = (("4", "FP4"), ("8", "FP8"), ("8", "INT8"), ("16", "16"), ("32", "32"))


def level(precision: str) -> Level:
    """The precision of most matrix products by its usual names: bf16, amp_bf16, fp8 rowwise, MXFP8, NVFP4."""
    for bits, mark in _LEVELS:
        if mark in precision.upper():
            return bits
    raise ProfileError(f"precision: {precision!r} is not known: want fp32, tf32, bf16, fp16, fp8, mxfp8 or nvfp4")
