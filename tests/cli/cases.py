"""What a run folder holds, without what differs from run to run."""

from dataclasses import replace

from mercer_papers.results import read_results


def bare(run):
    return {r.key: replace(r, seconds=0, cpu_seconds=0, started="") for r in read_results(run)}
