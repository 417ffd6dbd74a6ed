"""Results in, one page out."""

from .diagnosis_page import diagnosis_page
from .model_page import model_page
from .page import build

__all__ = ["build", "diagnosis_page", "model_page"]
