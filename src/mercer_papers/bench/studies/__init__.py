"""Longer comparisons, each a script: ``python -m mercer_papers.bench.studies.NAME``."""
