"""Read a representation by its spectrum: what will be learned, how fast, how well it generalises."""

from .analysis import analyze
from .comparison import compare, spectra
from .layer_ranking import layers
from .network import Descent, TwoLayerNet, neural_embedding, train_two_layer
from .picture import picture
from .spectrum import Spectrum

__all__ = [
    "Descent",
    "Spectrum",
    "TwoLayerNet",
    "analyze",
    "compare",
    "layers",
    "neural_embedding",
    "picture",
    "spectra",
    "train_two_layer",
]
