"""Plots in one style, for light and dark pages: import from the file that has the thing."""
