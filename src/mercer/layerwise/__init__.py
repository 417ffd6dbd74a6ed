"""Networks that learn layer by layer, without back-propagation (masoomi2020)."""

from .classifier import KernelNetworkClassifier
from .regressor import KernelNetworkRegressor

__all__ = [
    "KernelNetworkClassifier",
    "KernelNetworkRegressor",
]
