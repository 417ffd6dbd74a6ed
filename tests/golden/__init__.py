"""End-to-end fits whose numbers a redesign may not change without saying so."""
