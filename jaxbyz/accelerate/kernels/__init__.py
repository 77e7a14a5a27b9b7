"""Functions of many lanes as single GPU kernels, traced from the same functions that run on a CPU.

A kernel is written with Pallas and compiled by Triton; on other devices Pallas interprets it, for tests.
"""

from jaxbyz.accelerate.kernels.row_kernels import one_kernel, scan_in_kernel

__all__ = ["one_kernel", "scan_in_kernel"]
