"""Networks that learn layer by layer, without back-propagation (masoomi2020)."""

from .classifier import KernelNetworkClassifier
from .closed_form import Chain, ClosedFormLayer, fit_closed_form
from .network import KernelNetwork
from .record import LayerRecord
from .regressor import KernelNetworkRegressor
from .spectral import Ism, SpectralLayer, fit_spectral, ism

__all__ = [
    "Chain",
    "ClosedFormLayer",
    "Ism",
    "KernelNetwork",
    "KernelNetworkClassifier",
    "KernelNetworkRegressor",
    "LayerRecord",
    "SpectralLayer",
    "fit_closed_form",
    "fit_spectral",
    "ism",
]
