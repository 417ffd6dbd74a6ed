"""Linear algebra on tensors: distances, factorisations, Krylov methods, ridge regression."""

from .distances import safe_sqrt, squared_distances

__all__ = ["safe_sqrt", "squared_distances"]
