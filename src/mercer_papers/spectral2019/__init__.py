"""Entries of spectral2019: spectral analysis of kernel and neural embeddings."""
