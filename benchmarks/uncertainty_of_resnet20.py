"""Linearised Laplace for a ResNet-20 of CIFAR-10 with 270,000 weights: NLL and ECE before and after, CPU seconds.

    MERCER_DATA=... OMP_NUM_THREADS=1 python benchmarks/uncertainty_of_resnet20.py [--rows 256] [--test 3000]

The network has seen the training part: the prior is chosen on 1,000 rows of the test part, the rest of it is scored.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from mercer import data, metrics
from mercer.bayes import LinearizedLaplace
from mercer.experiments.backbones import CifarResNet

MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="training rows of the fit")
    parser.add_argument("--test", type=int, default=3000, help="test rows scored")
    parser.add_argument("--k", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = data.load("cifar10", rows=(options.rows, 1000 + options.test))
    x, test = ((part - MEAN) / DEVIATION for part in (pictures.x_train, pictures.x_test))
    model = CifarResNet(20)
    model.load_state_dict(data.resnet20_weights(), strict=False)
    model.eval()
    scored, truth = test[1000:], pictures.y_test[1000:]

    start = time.process_time()
    with torch.no_grad():
        before = torch.cat([model(part).softmax(1) for part in scored.split(250)])
    forward = time.process_time() - start
    start = time.process_time()
    posterior = LinearizedLaplace(
        model, k=options.k, eigenfunctions="network", iterations=0, batch_size=32,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    posterior.fit((x, pictures.y_train), (test[:1000], pictures.y_test[:1000]))
    fitted = time.process_time() - start
    start = time.process_time()
    after = posterior.predict_proba(scored)
    predicted = time.process_time() - start
    print(
        json.dumps(
            {
                "rows": options.rows, "k": options.k, "test rows": len(scored),
                "weights": sum(p.numel() for p in model.parameters()),
                "accuracy": [metrics.accuracy(p, truth) for p in (before, after)],
                "NLL": [metrics.nll(p, truth) for p in (before, after)],
                "ECE": [metrics.ece(p, truth) for p in (before, after)],
                "prior precision": posterior.prior_precision_,
                "CPU seconds": {"network alone": forward, "fit": fitted, "predict": predicted},
            },
            indent=1,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
