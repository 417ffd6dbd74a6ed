"""Efficient second-order optimization for neural networks with kernel machines (chen2022)."""
