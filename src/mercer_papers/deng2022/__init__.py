"""Entries of deng2022: NeuralEF, deconstructing kernels by deep neural networks."""
