"""Linear algebra on tensors: distances, factorisations, Krylov methods, ridge regression."""
