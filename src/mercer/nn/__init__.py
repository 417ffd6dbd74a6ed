"""Heads whose logits are kernels, the rivals they are measured against, and ``kernelize``."""

from ..features.parallel_networks import L2BatchNorm
from .distillation import distillation_loss
from .kernel_classifier import KernelClassifier
from .kernelization import kernelize
from .kervolution import Kervolution2d
from .rivals import CosineClassifier, SecondOrderPooling
from .sampled_softmax import sampled_cross_entropy

__all__ = [
    "CosineClassifier",
    "KernelClassifier",
    "Kervolution2d",
    "L2BatchNorm",
    "SecondOrderPooling",
    "distillation_loss",
    "kernelize",
    "sampled_cross_entropy",
]
