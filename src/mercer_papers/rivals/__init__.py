"""Rivals that only the papers' entries use, written as their authors describe them."""

from .efficient_probing import EfficientProbing
from .esgd import ESGD
from .multi_batch_lbfgs import MultiBatchLBFGS
from .nested_lora import NestedLoRA
from .spin import SpectralInference
from .swag import SWAG
from .two_layer_net import Descent, TwoLayerNet, neural_embedding, train_two_layer

__all__ = [
    "ESGD",
    "SWAG",
    "Descent",
    "EfficientProbing",
    "MultiBatchLBFGS",
    "NestedLoRA",
    "SpectralInference",
    "TwoLayerNet",
    "neural_embedding",
    "train_two_layer",
]
