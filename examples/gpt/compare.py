"""How far weights are from those of another run.

    python compare.py undisturbed/alone.pt weights/*.pt

Prints a line per file: the largest absolute difference, and the file.  Without any, all are equal bit for bit.
"""

from __future__ import annotations

import sys

import torch


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of two models."""
    if one.keys() != other.keys():
        raise SystemExit("these are different models: their parameters have different names")
    differences = [(one[name].double() - other[name].double()).abs().max() for name in one]
    return float(torch.stack(differences).max())  # NaN stays NaN


def main() -> None:
    reference, *others = (torch.load(path, weights_only=True) for path in sys.argv[1:])
    for path, weights in zip(sys.argv[2:], others, strict=True):
        print(f"{distance(reference, weights):.3e}  {path}")


if __name__ == "__main__":
    main()
