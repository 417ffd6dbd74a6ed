"""A fitted model and a diagnosis, each as one self-contained page."""

from .diagnosis_page import diagnosis_page
from .model_page import model_page

__all__ = ["diagnosis_page", "model_page"]
