"""Every entry of jayasumana2021 runs at smoke scale, without a data folder."""

import numpy as np
import pytest
import torch
from reference_entries import second_order_pooled

from mercer_papers import data
from mercer_papers.catalogue import entries, entry
from mercer_papers.jayasumana2021 import active_learning, distillation, sentences, sphere, transfer
from mercer_papers.jayasumana2021.heads import backbone, build, make_head
from mercer_papers.jayasumana2021.trained import cifar, fit, squared_loss


def _noise(generator):
    return torch.randn(4, 3, 32, 32, generator=generator)


OURS = [e.id for e in entries() if e.paper == "jayasumana2021"]


def test_all_sixteen_entries_are_built():
    assert len(OURS) == 16
    assert all(entry(name).built for name in OURS)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_rows_and_columns_meet_the_published_ones(name, scale):
    published = {(number.row, number.column) for number in entry(name).numbers}
    cells = entry(name).load().cells(entry(name), scale)
    assert len({cell.key() for cell in cells}) == len(cells)
    planned = {(cell.row, cell.column) for cell in cells}
    if scale == "paper" and published:
        assert published <= planned
    stand_in = ("jayasumana2021/table9", "jayasumana2021/table4")
    assert not published or published & planned or name in stand_in


def test_margin_takes_the_undecided_and_k_center_spreads():
    scores = torch.tensor([[5.0, 0.0], [0.1, 0.0], [0.0, 3.0], [0.0, 0.2]])
    assert active_learning.margin(scores, 2).tolist() == [1, 3]
    angles = torch.tensor([0.0, 0.01, 0.02, 1.5, 3.0])
    places = torch.stack((angles.cos(), angles.sin()), 1)
    chosen = active_learning.k_center(places, 3, torch.Generator().manual_seed(0)).tolist()
    assert len(set(chosen)) == 3 and {3, 4} <= set(chosen)
    everything = active_learning.k_center(torch.ones(4, 2), 4, torch.Generator().manual_seed(0))
    assert sorted(everything.tolist()) == [0, 1, 2, 3]


def test_f1_of_known_counts():
    assert sentences._f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])) == 0.5


def test_heads_train_on_every_backbone():
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    heads = entry("jayasumana2021/table3").run["variants"]
    for network in ("ResNet-8, half width", "LeNet-5", "Small VGG", "Small DenseNet"):
        for head in heads if network == "ResNet-8, half width" else ("Kernelized", "SOP"):
            assert build(network, head, 7)(x).shape == (4, 7)
    with pytest.raises(ValueError, match="name must be one of"):
        backbone("AlexNet", 10)


def test_second_order_pooling_sees_the_maps_not_their_mean(generator):
    """SOP of ENTRIES: a pooled vector has an outer product of rank one, the maps of 8 x 8 places do not."""
    model = build("ResNet-8, half width", "SOP", 10).eval()
    maps = model.layer3(model.layer2(model.layer1(model.relu(model.bn1(model.conv1(_noise(generator)))))))
    pooled = second_order_pooled(maps)
    torch.testing.assert_close(model.linear.pool(maps), pooled)
    assert torch.linalg.matrix_rank(maps[0].flatten(1) @ maps[0].flatten(1).mT) > 1


def test_softmax_of_scale_ten_starts_where_the_kernelised_heads_do(generator):
    z = torch.randn(500, 64, generator=generator)
    torch.manual_seed(0)
    spread = {
        name: float(make_head(name, 64, 10)(z).detach().std()) for name in ("Softmax", "Softmax, scale 10", "LIN")
    }
    assert spread["Softmax"] < 0.2 * spread["LIN"] and 0.3 < spread["Softmax, scale 10"] / spread["LIN"] < 3


def test_a_loss_that_turns_nan_stops_the_training():
    x, y = torch.full((16, 3, 32, 32), float("nan")), torch.arange(16) % 10
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(FloatingPointError, match="loss became nan at step 0"):
        fit(build("LeNet-5", "Softmax", 10), x, y, epochs=1, batch=8, generator=generator)


def test_squared_loss_is_the_distance_to_one_hot():
    scores = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert squared_loss(scores, torch.tensor([0, 1])).item() == pytest.approx(0.125)


def test_the_published_teacher_classifies_cifar10(papers_data):
    _, _, x, y = cifar("cifar10", 1, 200)
    teacher = distillation._teacher("published ResNet-20", 10, x, y, {}, 0)
    assert distillation.accuracy(teacher, x, y) > 85


def test_superclasses_group_five_classes_each(papers_data):
    assert transfer._coarse_of_fine().bincount().tolist() == [5] * 20


def test_kept_embeddings_are_trained_on_and_the_last_are_scored(tmp_path, monkeypatch):
    monkeypatch.setenv("MERCER_DATA", str(tmp_path))
    with pytest.raises(data.MissingData, match=r"Put cifar100_resnet20_embeddings\.npz into the folder"):
        transfer._kept_embeddings("coarse", 3000)
    numbers = np.arange(5100)
    path = tmp_path / "cifar100_resnet20_embeddings.npz"
    np.savez(path, embeddings=numbers[:, None].astype(np.float16), coarse=(numbers % 20).astype(np.uint8))
    z, y, z_test, y_test = transfer._kept_embeddings("coarse", 60)
    assert z.shape == (60, 1) and z_test.shape == (5000, 1) and int(y_test[-1]) == 5099 % 20
    assert len(transfer._kept_embeddings("coarse", 3000)[0]) == 100 and y.dtype == torch.int64


def test_of_several_starts_on_the_sphere_the_least_training_loss_is_taken():
    """One start of a head with one prototype a class decided table 1: the first of the twelve is the single one."""
    cells = {cell.row: cell for cell in sphere.cells(entry("jayasumana2021/table1"), "smoke")}
    one, best = (cells[f"Kernelized{suffix}"] for suffix in ("", ", best of 12 starts by training loss"))
    assert "starts" not in one.settings and best.settings["starts"] == 2
    single, several = sphere.run(one), sphere.run(best)
    alone = {start: sphere._train("Kernelized", 100, 2, 50, 0.03, start, 0, "cpu")[1] for start in (1, 2)}
    assert single.values["training loss"] == alone[1] >= alone[2] == several.values["training loss"]
