"""Entries of masoomi2020, layer-wise learning via kernel embedding."""
