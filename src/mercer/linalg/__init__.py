"""Linear algebra on tensors: distances, factorisations, Krylov methods, ridge regression."""

from .blocks import block_rows, blockwise, blockwise_matmul, slices
from .cholesky import Cholesky, cholesky, cholesky_in_place, inverse_diagonal, shifted, solve_factored
from .distances import (
    angles,
    clamp_cosines,
    cosines,
    median_distance,
    norms_and_units,
    safe_sqrt,
    scalar_products,
    squared_distances,
    unit_rows,
)
from .eigen import TopEigh, randomized_range, top_eigh
from .inverse_root import inverse_root
from .lanczos import Lanczos, gauss, radau
from .manhattan import manhattan_distances
from .operators import SymmetricOperator
from .ridge import Ridge, ridge_loo
from .tiles import fill_tiles, map_distances
from .torch_internals import (
    add_in_place,
    differentiated,
    forward_mode,
    in_backward,
    in_batched_backward,
    leave_uncompiled,
    mark_for_compiler,
    norms,
    readable,
    records_graph,
    scale_in_place,
    transformed,
)

__all__ = [
    "Cholesky",
    "Lanczos",
    "Ridge",
    "SymmetricOperator",
    "TopEigh",
    "add_in_place",
    "angles",
    "block_rows",
    "blockwise",
    "blockwise_matmul",
    "cholesky",
    "cholesky_in_place",
    "clamp_cosines",
    "cosines",
    "differentiated",
    "fill_tiles",
    "forward_mode",
    "gauss",
    "in_backward",
    "in_batched_backward",
    "inverse_diagonal",
    "inverse_root",
    "leave_uncompiled",
    "manhattan_distances",
    "map_distances",
    "mark_for_compiler",
    "median_distance",
    "norms",
    "norms_and_units",
    "radau",
    "randomized_range",
    "readable",
    "records_graph",
    "ridge_loo",
    "safe_sqrt",
    "scalar_products",
    "scale_in_place",
    "shifted",
    "slices",
    "solve_factored",
    "squared_distances",
    "top_eigh",
    "transformed",
    "unit_rows",
]
