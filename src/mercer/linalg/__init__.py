"""Linear algebra on tensors: distances, factorisations, Krylov methods, ridge regression."""

from .blocks import block_rows, blockwise, blockwise_matmul, slices
from .cholesky import Cholesky, cholesky, shifted
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
    "clamp_cosines",
    "cosines",
    "differentiated",
    "fill_tiles",
    "forward_mode",
    "gauss",
    "in_backward",
    "in_batched_backward",
    "inverse_root",
    "manhattan_distances",
    "map_distances",
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
    "squared_distances",
    "top_eigh",
    "transformed",
    "unit_rows",
]
