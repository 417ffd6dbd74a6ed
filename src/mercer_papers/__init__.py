"""The evidence: five papers' results run again, their data sets and rivals, and the bench against peers.

``catalogue`` knows what was published, ``runner`` runs one cell at a time, ``verdict`` judges what came out.
"""
