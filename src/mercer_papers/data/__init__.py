"""Data sets: frozen splits, synthetic sets with known answers, loaders for the papers' files."""

from mercer.storage.archives import CorruptData
from mercer.tabular.folds import stratified_folds

from ..data_files import MissingData
from .loaders import available, how_to_get, load, names, resnet20_weights
from .resnet import CifarResNet, normalised, published_resnet20
from .splits import Dataset, Split, stratified_split
from .synthetic import Sphere, adversarial, random_labels, sphere, spiral

__all__ = [
    "CifarResNet",
    "CorruptData",
    "Dataset",
    "MissingData",
    "Sphere",
    "Split",
    "adversarial",
    "available",
    "how_to_get",
    "load",
    "names",
    "normalised",
    "published_resnet20",
    "random_labels",
    "resnet20_weights",
    "sphere",
    "spiral",
    "stratified_folds",
    "stratified_split",
]
