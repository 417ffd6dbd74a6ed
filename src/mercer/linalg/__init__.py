"""Linear algebra on tensors: distances, factorisations, Krylov methods, ridge regression."""

from .autodiff import differentiated, transformed
from .blocks import block_rows, blockwise, blockwise_matmul, slices
from .cholesky import Cholesky, cholesky
from .distances import angles, clamp_cosines, cosines, norms_and_units, plain, safe_sqrt, squared_distances, unit_rows
from .eigen import TopEigh, randomized_range, top_eigh
from .inverse_root import inverse_root
from .lanczos import Lanczos, gauss, radau
from .operators import SymmetricOperator
from .ridge import Ridge, kernel_ridge_loo, ridge_loo

__all__ = [
    "Cholesky",
    "Lanczos",
    "Ridge",
    "SymmetricOperator",
    "TopEigh",
    "angles",
    "block_rows",
    "blockwise",
    "blockwise_matmul",
    "cholesky",
    "clamp_cosines",
    "cosines",
    "differentiated",
    "gauss",
    "inverse_root",
    "kernel_ridge_loo",
    "norms_and_units",
    "plain",
    "radau",
    "randomized_range",
    "ridge_loo",
    "safe_sqrt",
    "slices",
    "squared_distances",
    "top_eigh",
    "transformed",
    "unit_rows",
]
