"""The most bytes that a call holds at once."""

import torch


def peak_bytes(work):
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
