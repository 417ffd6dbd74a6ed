"""Networks that learn layer by layer, without back-propagation (masoomi2020)."""

from . import bandwidths, dependence
from .classifier import KernelNetworkClassifier
from .closed_form import Chain, ClosedFormLayer, class_norms, fit_closed_form
from .network import KernelNetwork, Standardize
from .record import LayerRecord, measure_gram
from .regressor import KernelNetworkRegressor
from .spectral import Ism, SpectralLayer, fit_spectral, ism, riemannian_gradient

__all__ = [
    "Chain",
    "ClosedFormLayer",
    "Ism",
    "KernelNetwork",
    "KernelNetworkClassifier",
    "KernelNetworkRegressor",
    "LayerRecord",
    "SpectralLayer",
    "Standardize",
    "bandwidths",
    "class_norms",
    "dependence",
    "fit_closed_form",
    "fit_spectral",
    "ism",
    "measure_gram",
    "riemannian_gradient",
]
