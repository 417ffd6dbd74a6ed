"""Which representation suits the labels, before anything is trained."""

from .diagnose import SHUFFLES, STEPS, Diagnosis, Reading, diagnose
from .problem import SCANNED, Sample, sample

__all__ = ["SCANNED", "SHUFFLES", "STEPS", "Diagnosis", "Reading", "Sample", "diagnose", "sample"]
