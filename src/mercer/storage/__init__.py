"""Saving and loading: safetensors + JSON, whole or not at all, never pickle; files that nobody has to trust."""
