"""Functions of many lanes or of one small matrix as single GPU kernels, traced from the functions that run on a CPU.

A kernel is written with Pallas and compiled by Triton; on other devices Pallas interprets it, for tests.
"""

from jaxbyz.accelerate.kernels.matrix_kernels import (
    computed_once,
    inner_product,
    matrix_vector,
    median_of_pairs,
    one_matrix_kernel,
    repeat,
)
from jaxbyz.accelerate.kernels.row_kernels import KERNEL_TYPES, one_kernel

__all__ = [
    "KERNEL_TYPES",
    "computed_once",
    "inner_product",
    "matrix_vector",
    "median_of_pairs",
    "one_kernel",
    "one_matrix_kernel",
    "repeat",
]
