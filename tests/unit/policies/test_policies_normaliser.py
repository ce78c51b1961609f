"""Observation statistics: exact merges, masks, non-finite rows, constant dimensions."""

import numpy as np
import torch

from rollbus_policies import mlp
from rollbus_policies._normaliser import CLIP, Normaliser
from rollbus_policies.base import Ask
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("toy", {"obs": ArraySpec("float32", (2,))}, ActionSpec("discrete", num=[2]))


def valid(*shape):
    return torch.ones(shape, dtype=torch.bool)


def test_merged_batches_equal_one_pass():
    data = np.random.default_rng(0).normal([5.0, -1e4], [0.1, 30.0], (1000, 2)).astype(np.float32)
    normaliser = Normaliser((2,))
    for part in np.split(data, [3, 200, 201, 700]):
        normaliser.merge(torch.from_numpy(part), valid(len(part)))
    wide = data.astype(np.float64)
    np.testing.assert_allclose(normaliser.mean.numpy(), wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.var.numpy(), wide.var(0), rtol=1e-9)
    assert normaliser.count.item() == 1000
    seen = normaliser(torch.from_numpy(data)).numpy()
    np.testing.assert_allclose(seen, (wide - wide.mean(0)) / wide.std(0), atol=2e-3)


def test_masked_and_non_finite_rows_are_left_out():
    data = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1e30, 1e30], [float("nan"), 0.0], [0.0, float("inf")]])
    mask = torch.tensor([True, True, False, True, True])
    normaliser = Normaliser((2,))
    normaliser.merge(data, mask)
    assert normaliser.mean.tolist() == [2.0, 3.0] and normaliser.var.tolist() == [1.0, 1.0]
    assert normaliser.rejected.item() == 2 and normaliser.count.item() == 2


def test_constant_dimension_returns_the_constant():
    data = torch.tensor([[0.1, 1.0], [0.1, 3.0]])
    normaliser = Normaliser((2,))
    normaliser.merge(data, valid(2))
    seen = normaliser(data)
    assert torch.isfinite(seen).all() and seen[:, 0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(normaliser.unnormalise(seen), data, rtol=0, atol=0)
    assert normaliser(torch.tensor([0.6, 2.0]))[0].item() == 0.5


def test_values_are_cut_and_unseen_statistics_do_nothing():
    normaliser = Normaliser((1,))
    assert normaliser(torch.tensor([3.5])).item() == 3.5
    normaliser.merge(torch.tensor([[0.0], [2.0]]), valid(2))
    assert normaliser(torch.tensor([1e9])).item() == CLIP
    normaliser.merge(torch.zeros(0, 1), valid(0))
    assert normaliser.count.item() == 2


def test_scalar_observation():
    normaliser = Normaliser(())
    normaliser.merge(torch.tensor([1.0, 3.0, float("nan")]), valid(3))
    assert normaliser.mean.item() == 2.0 and normaliser.var.item() == 1.0


def test_acting_and_learning_share_statistics_and_leave_them_alone():
    torch.manual_seed(0)
    policy = mlp.make(mlp.Config(normalise_obs=True), SPEC, critic=True, frame_stack=1)
    obs = np.random.default_rng(0).normal(3, 2, (8, 2)).astype(np.float32)
    policy.update_normaliser({"obs/obs": torch.from_numpy(obs)}, valid(8))
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    seeds = np.arange(8).astype(np.uint64)
    act = policy.act({"obs": obs}, None, Ask("sample", ("log_prob", "value")), seeds)
    batch = {"obs/obs": torch.from_numpy(obs), "action": torch.from_numpy(act.action)}
    scored = policy(batch, ("log_prob", "value"))
    assert scored["log_prob"].detach().numpy().tolist() == act.extras["log_prob"].tolist()
    assert scored["value"].detach().numpy().tolist() == act.extras["value"].tolist()
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert "normaliser.obs_obs.mean" in before


def test_of_stacked_frames_the_newest_counts():
    policy = mlp.make(mlp.Config(normalise_obs=True), SPEC, critic=False, frame_stack=2)
    frames = torch.tensor([[[9.0, 9.0], [1.0, 2.0]], [[9.0, 9.0], [3.0, 4.0]]])
    policy.update_normaliser({"obs/obs": frames}, valid(2))
    assert policy.normaliser.of("obs").mean.tolist() == [2.0, 3.0]
