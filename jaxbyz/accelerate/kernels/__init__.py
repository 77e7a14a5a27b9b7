"""Functions over lanes as single GPU kernels; the functions themselves are those that run on a CPU."""

from jaxbyz.accelerate.kernels.lanes import Scan, one_kernel, pack, scan_kernel, traced_step, unpack
from jaxbyz.accelerate.kernels.sums import Sums, sum_kernel, traced_sums

LARGEST = 1024  # parameters of a policy that kernels take

__all__ = [
    "LARGEST",
    "Scan",
    "Sums",
    "one_kernel",
    "pack",
    "scan_kernel",
    "sum_kernel",
    "traced_step",
    "traced_sums",
    "unpack",
]
