"""The commands of the papers' evidence: reproduce, list, report, bench, estimate."""
