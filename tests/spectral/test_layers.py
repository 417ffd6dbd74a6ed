"""`layers` finds the blocks of a network, and sees those that fused attention skips."""

import pytest
import torch
from torch import Tensor, nn

from mercer.checks import NumericalWarning
from mercer.spectral import layers
from mercer.spectral.comparison import find_blocks


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(block, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(60, 5, 8, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0, 0] > 0).long()


def test_layers_finds_the_blocks_itself():
    table = layers(Transformer(), data())
    assert set(table.index) == {"encoder.layers.0", "encoder.layers.1", "head"}
    convolutional = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    assert find_blocks(convolutional) == ["0", "4"]


def test_layers_inside_an_encoder_are_seen():
    assert "encoder.layers.0.linear1" in layers(Transformer(), data(), ["encoder.layers.0.linear1"]).index


def test_a_layer_that_does_not_run_is_named_with_what_to_do():
    name = "encoder.layers.0.self_attn.out_proj"
    with pytest.raises(ValueError, match=r"out_proj' must run in forward .* choose among encoder.layers.0, "):
        layers(Transformer(), data(), [name])


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_nearly_parallel_are_no_reason_to_stop(seed):
    # LayerNorm of two numbers gives (1, -1) or (-1, 1) to five digits: cosines near 1, whose angles are half as exact.
    torch.manual_seed(seed)
    block = nn.TransformerEncoderLayer(2, 1, 4, batch_first=True)
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(8, 3)).eval()
    with pytest.warns(NumericalWarning, match="H is singular to rounding along the targets"):
        table = layers(model, [(torch.randn(80, 4, 2), torch.arange(80) % 3)])
    assert (table["complexity"] > 0).all()
