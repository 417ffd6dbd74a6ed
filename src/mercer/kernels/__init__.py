"""Kernels k(x, y): every one an ``nn.Module``, closed under ``+``, ``*``, ``**`` and ``normalized()``."""

from . import functionals
from .algebra import Normalized, Power, Product, Scaled, Sum
from .base import Kernel
from .dot_product import ArcCosine, Cosine, Linear, Polynomial
from .given import FunctionKernel, Precomputed
from .relu_gram import ReLUGram
from .stationary import RBF, Laplacian, Matern

__all__ = [
    "RBF",
    "ArcCosine",
    "Cosine",
    "FunctionKernel",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "Normalized",
    "Polynomial",
    "Power",
    "Precomputed",
    "Product",
    "ReLUGram",
    "Scaled",
    "Sum",
    "functionals",
]
