"""Converting models in memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_systems.slidesparse import PatternViolation, SlideLinear, check, convert
from llm_systems.slidesparse.conversion import linear_layers, prune_model


@pytest.fixture
def model() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    made = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 24), nn.Linear(24, 5))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def test_a_model_gives_what_its_pruned_layers_give(model: nn.Sequential) -> None:
    report = convert(model, "6:8", ignore=("3",))
    assert [type(m) for m in model] == [SlideLinear, nn.ReLU, SlideLinear, nn.Linear]
    x = torch.randn(7, 20, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model[3](model[2].dense_reference(model[0].dense_reference(x).relu()))
        torch.testing.assert_close(model(x), expected, atol=1e-4, rtol=1e-4)
    table = report.to_pandas()
    assert table.layer.tolist() == ["0", "2"]
    assert table.exact.all()
    # 20 inputs are three blocks of eight: 3 * 6 values of 4 bytes and 2 bits each, 32 rows.
    assert table.bytes_slid[0] == 32 * 18 * 4 + 32 * 18 // 4
    assert "2 layers to 6:8" in str(report)


def test_the_energy_is_the_share_of_the_squares(model: nn.Sequential) -> None:
    before = model[0].weight.detach().clone()
    report = convert(model, "2:4", targets="^0$")
    lost = before[model[0].weight == 0].double().pow(2).sum() / before.double().pow(2).sum()
    assert report.layers[0].pruned_energy == pytest.approx(float(lost))
    assert len(report.layers) == 1


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_calibration_reaches_every_layer(method: str, model: nn.Sequential) -> None:
    batches = [torch.randn(50, 20, generator=torch.Generator().manual_seed(1)) for _ in range(3)]
    # Little memory: each layer is a group of its own, calibrated after those before it.
    prune_model(model, "6:8", method, calib_loader=batches, memory=1)  # type: ignore[arg-type]
    assert all(check(model[place].weight.data, "6:8").ok for place in (0, 2, 3))


def test_wanda_uses_the_norms_of_each_layer(model: nn.Sequential) -> None:
    x = torch.randn(50, 20, generator=torch.Generator().manual_seed(1)) * torch.arange(1.0, 21)
    norms = x.norm(dim=0)
    scores = model[0].weight.detach().abs() * norms
    prune_model(model, "2:4", "wanda", calib_loader=[x])
    # The two highest scores of each block stay.
    expected = torch.zeros(32, 5, 4).scatter(-1, scores.view(32, 5, 4).topk(2).indices, 1.0)
    assert torch.equal(model[0].weight != 0, expected.view(32, 20) != 0)


def test_calibration_leaves_the_mode_of_every_module(model: nn.Sequential) -> None:
    model.train()
    model[1].eval()
    prune_model(model, "6:8", "wanda", calib_loader=[torch.ones(3, 20)])
    assert [module.training for module in model] == [True, False, True, True]


def test_layers_that_share_an_embedding_are_left() -> None:
    model = nn.Module()
    model.embed = nn.Embedding(10, 8)
    model.head = nn.Linear(8, 10, bias=False)
    model.head.weight = model.embed.weight
    model.body = nn.Linear(8, 8)
    assert list(linear_layers(model)) == ["body"]


def test_models_in_float64_are_converted(model: nn.Sequential) -> None:
    report = convert(model.double(), "6:8")
    assert [layer.exact for layer in report.layers] == [True] * 3
    assert 0 < report.layers[0].pruned_energy < 0.2


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_energy_does_not_depend_on_the_scale(size: float) -> None:
    model = nn.Sequential(nn.Linear(4, 1))
    model[0].weight.data = size * torch.tensor([[1.0, 2, 3, 4]])
    # (1 + 4) of (1 + 4 + 9 + 16).
    assert convert(model, "2:4").layers[0].pruned_energy == pytest.approx(5 / 30)


def test_a_layer_in_two_places_is_replaced_in_both() -> None:
    model = nn.Module()
    model.first = model.second = nn.Linear(16, 8)
    assert len(convert(model, "6:8").layers) == 1
    assert isinstance(model.first, SlideLinear)
    assert model.second is model.first


def test_what_is_wrong_with_a_later_layer_is_found_first(model: nn.Sequential) -> None:
    model[2].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="2: weight holds NaN"):
        convert(model, "6:8")
    model[2].weight.data[0, 0] = 1.0
    for backend in ("cpu", "cusparselt"):
        model[2].bfloat16()
        with pytest.raises(ValueError, match=rf"backend '{backend}' is for"):
            convert(model, "6:8", backend=backend)  # type: ignore[arg-type]
    assert all((model[place].weight != 0).all() for place in (0, 2, 3))


def test_refusals_leave_the_model_alone(model: nn.Sequential) -> None:
    with pytest.raises(PatternViolation, match=r"^0: row 0, inputs 0 to 7"):
        convert(model, "6:8", "keep")
    with pytest.raises(ValueError, match=r"ignore names '4'; allowed: names of linear layers"):
        convert(model, "6:8", ignore=["4"])
    with pytest.raises(TypeError, match=r"ignore is \[3\]; allowed: a sequence of names"):
        convert(model, "6:8", ignore=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="targets is 3; allowed"):
        convert(model, "6:8", targets=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed is 'a'"):
        convert(model, "6:8", "random", seed="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="calib_loader gives a str"):
        convert(model, "6:8", "wanda", calib_loader="text")
    with pytest.raises(ValueError, match="0: calib holds NaN"):
        convert(model, "6:8", "wanda", calib_loader=[torch.full((3, 20), torch.nan)])
    with pytest.raises(PatternViolation):
        convert(model, "6:8", "keep")
    with pytest.raises(ValueError, match="calib_loader is missing"):
        convert(model, "6:8", "wanda")
    with pytest.raises(ValueError, match="calib_loader is empty"):
        convert(model, "6:8", "wanda", calib_loader=[])
    with pytest.raises(ValueError, match="no linear layer"):
        convert(model, "6:8", targets="nothing")
    extra = nn.Sequential(model, nn.Linear(5, 5))
    extra.forward = model.forward  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="did not reach"):
        convert(extra, "6:8", "wanda", calib_loader=[torch.ones(2, 20)])
    with pytest.raises(TypeError, match="from_linear"):
        convert(nn.Linear(8, 8), "6:8")
    with pytest.raises(ValueError, match="no regular expression"):
        convert(model, "6:8", targets="(")
    with pytest.raises(TypeError, match="model is a int"):
        convert(3, "6:8")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sequence of names"):
        convert(model, "6:8", ignore="lm_head")
    assert all((model[place].weight != 0).all() for place in (0, 2, 3))
