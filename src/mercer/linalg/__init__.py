"""Linear algebra on tensors: distances, factorisations, Krylov methods, ridge regression."""

from .blocks import block_rows, blockwise, blockwise_matmul, slices
from .cholesky import Cholesky, cholesky
from .distances import angles, clamp_cosines, cosines, safe_sqrt, squared_distances, unit_rows
from .eigen import TopEigh, top_eigh
from .lanczos import Lanczos, gauss, lanczos, radau
from .ridge import Ridge, kernel_ridge_loo, ridge_loo
from .solve import ConjugateGradient, conjugate_gradient

__all__ = [
    "Cholesky",
    "ConjugateGradient",
    "Lanczos",
    "Ridge",
    "TopEigh",
    "angles",
    "block_rows",
    "blockwise",
    "blockwise_matmul",
    "cholesky",
    "clamp_cosines",
    "conjugate_gradient",
    "cosines",
    "gauss",
    "kernel_ridge_loo",
    "lanczos",
    "radau",
    "ridge_loo",
    "safe_sqrt",
    "slices",
    "squared_distances",
    "top_eigh",
    "unit_rows",
]
