"""Functions of many lanes as single GPU kernels, traced from the same functions that run on a CPU.

A kernel is written with Pallas and compiled by Triton; on other devices Pallas interprets it, for tests.
"""

from jaxbyz.accelerate.kernels.row_kernels import KERNEL_TYPES, one_kernel

__all__ = ["KERNEL_TYPES", "one_kernel"]
