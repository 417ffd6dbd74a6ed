"""The spectral solver: rounding of its input may change no more than rounding of its output."""

import numpy as np
from sklearn.datasets import load_wine

from mercer.layerwise import KernelNetworkClassifier


def test_rounding_of_the_rows_does_not_change_the_network():
    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    noise = 1e-13 * np.random.default_rng(0).standard_normal(x.shape)
    fits = [
        KernelNetworkClassifier(solver="spectral", features=100, random_state=0).fit(rows[::2], y[::2])
        for rows in (x, x + noise)
    ]
    assert fits[0].n_layers_ == fits[1].n_layers_
    for before, after in zip(fits[0].history_, fits[1].history_, strict=True):
        assert abs(before["hsic"] - after["hsic"]) < 1e-6
    np.testing.assert_allclose(fits[0].predict_proba(x[1::2]), fits[1].predict_proba(x[1::2]), atol=1e-4)
