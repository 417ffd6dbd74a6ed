"""Networks that learn layer by layer, without back-propagation (masoomi2020)."""

from .estimators import KernelNetworkClassifier, KernelNetworkRegressor

__all__ = [
    "KernelNetworkClassifier",
    "KernelNetworkRegressor",
]
