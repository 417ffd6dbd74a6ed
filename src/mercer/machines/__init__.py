"""Kernel machines: f = sum_i alpha_i k(x_i, .), on any kernel, exact, by landmarks, or on all rows."""
