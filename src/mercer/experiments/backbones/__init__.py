"""Networks that the papers' experiments train: embeddings of pictures and sentences, a linear head on top."""

from .densenet import DenseNet
from .lenet import LeNet5
from .resnet import CifarResNet
from .transformer import SmallTransformer
from .vgg import Vgg16

__all__ = ["CifarResNet", "DenseNet", "LeNet5", "SmallTransformer", "Vgg16"]
