"""Every entry of chen2022 at smoke scale, on the rows that ship with scikit-learn."""

import importlib
import math

import pytest
import torch

from mercer.experiments.chen2022 import methods, networks, setting, training

pytest.importorskip("pytorch_optimizer", reason="AdaHessian comes from pytorch-optimizer")
ENTRIES = ("table1", "table2", "table3", "table4", "fig1", "fig2", "fig3", "fig4", "fig5", "thm3_1", "prop3_2")


def free_cells(name):
    module = importlib.import_module(f"mercer.experiments.chen2022.{name}")
    return module, [cell for cell in module.cells("smoke") if not cell.data]


@pytest.mark.parametrize("name", ENTRIES)
def test_smoke(name):
    from mercer.experiments.execution import execute

    module, cells = free_cells(name)
    results = [execute(cell, "smoke") for cell in cells]
    assert [(r.row, r.status, r.error) for r in results if r.status != "done"] == []
    if hasattr(module, "draw"):
        assert module.draw(results).axes
    for result in results:
        numbers = [*result.values.values(), *([] if result.value is None else [result.value])]
        assert numbers and all(math.isfinite(v) for v in numbers)


def test_the_theorem_holds_for_one_instance_and_fails_for_a_batch():
    from mercer.experiments.chen2022 import prop3_2, thm3_1

    assert [thm3_1.run(cell).passed for cell in thm3_1.cells("smoke")] == [True, False, False]
    assert [prop3_2.run(cell).passed for cell in prop3_2.cells("smoke")][:2] == [True, False]


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_every_method_has_the_same_search_budget(scale):
    names = {*methods.SECOND_ORDER, *methods.FIRST_ORDER, methods.LAST_LAYER, methods.FUNCTION_SPACE}
    budgets = {len(set(methods.tries(name, "RBF", scale))) for name in names}
    assert budgets == {methods.TRIES[scale]}
    assert len(methods.tries("ours", "linear", scale)) == methods.TRIES[scale]


def test_cached_inverses_take_what_the_papers_hessian_column_says():
    run = training.searched(training.Plan("digits", "ours", "smoke"))
    n = len(setting.rows_of("digits", "smoke").x)
    assert run.state_mb == pytest.approx(n // 64 * 64 * 64 * 4 / 2**20 + (n % 64) ** 2 * 4 / 2**20)


def test_the_papers_networks_have_their_last_widths():
    assert networks.ResNet18(10).linear.in_features == 512
    assert networks.Lstm(50, 2).linear.in_features == 100
    logits = networks.Lstm(50, 2)(torch.tensor([[3, 4, 0], [0, 0, 0]]))
    assert logits.shape == (2, 2) and logits.isfinite().all()
    assert networks.ResNet18(10)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_texts_become_word_numbers_and_shares():
    vocabulary = setting._vocabulary(["the cat<br />the", "cat the dog"])
    tokens = setting._tokens(["dog the bird the"], vocabulary)
    assert vocabulary["the"] == 1 and tokens[0, :4].tolist() == [vocabulary["dog"], 1, 1, 0]
    shares = setting.bag_of_words(tokens)
    assert shares[0, 1] == pytest.approx(2 / 3) and float(shares.sum()) == pytest.approx(1)
