"""Kernels k(x, y): every one an ``nn.Module``, closed under ``+``, ``*``, ``**`` and ``normalized()``."""

from . import functionals
from .algebra import Constant, Normalized, Power, Product, Scaled, Sum
from .base import Kernel
from .dot_product import ArcCosine, Cosine, Linear, Polynomial
from .empirical_ntk import EmpiricalNTK
from .gpytorch import from_gpytorch, to_gpytorch
from .infinite_network import infinite_width
from .network import MonteCarloNNGP, NetworkKernel, Trajectory
from .nngp import NNGP, NTK, ConvNNGP, ConvNTK
from .radial_series import RadialSeries, truncation_bound
from .relu_gram import ReLUGram
from .stationary import RBF, Laplacian, Matern, Periodic, RationalQuadratic
from .user_kernels import FunctionKernel, Precomputed

__all__ = [
    "NNGP",
    "NTK",
    "RBF",
    "ArcCosine",
    "Constant",
    "ConvNNGP",
    "ConvNTK",
    "Cosine",
    "EmpiricalNTK",
    "FunctionKernel",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "MonteCarloNNGP",
    "NetworkKernel",
    "Normalized",
    "Periodic",
    "Polynomial",
    "Power",
    "Precomputed",
    "Product",
    "RadialSeries",
    "RationalQuadratic",
    "ReLUGram",
    "Scaled",
    "Sum",
    "Trajectory",
    "from_gpytorch",
    "functionals",
    "infinite_width",
    "to_gpytorch",
    "truncation_bound",
]
