"""What enters and leaves the layers of a torch model."""

from .embedding import embeddings

__all__ = ["embeddings"]
