"""Kernelised classification (jayasumana2021): its tables, its figures, its theorem."""
