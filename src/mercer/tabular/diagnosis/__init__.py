"""Which representation suits the labels, before anything is trained."""

from .problem import SCANNED, Sample, sample
from .ranking import SHUFFLES, STEPS, Diagnosis, Reading, diagnose

__all__ = ["SCANNED", "SHUFFLES", "STEPS", "Diagnosis", "Reading", "Sample", "diagnose", "sample"]
