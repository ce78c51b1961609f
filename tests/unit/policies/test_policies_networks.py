"""Inputs computed from specs, ensembles against single networks."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from rollbus_policies import cnn, mlp, recurrent
from rollbus_policies._critics import QEnsemble, make_q
from rollbus_policies._transforms import ImageInput, VectorInput
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

TWO = ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0])
DISCRETE = ActionSpec("discrete", num=[3])
VECTOR = {"obs": ArraySpec("float32", (4,))}


def test_vector_input_concatenates_in_key_order_and_encodes_classes():
    spec = EnvSpec(
        "toy",
        {
            "b": ArraySpec("float32", (2,)),
            "a": ArraySpec("int64", (), low=0, high=2, layout="onehot"),
            "c": ArraySpec("int64", (2,), low=1, high=2, layout="tokens"),
            "d": ArraySpec("uint8", (1, 1, 2), layout="HWC"),
        },
        DISCRETE,
    )
    inputs = VectorInput(spec, spec.group("policy"), 1)
    obs = {
        "a": torch.tensor([2]),
        "b": torch.tensor([[0.5, -1.0]]),
        "c": torch.tensor([[1, 2]]),
        "d": torch.tensor([[[[255, 51]]]], dtype=torch.uint8),
    }
    seen = inputs(obs, None)
    assert inputs.size == 3 + 2 + 4 + 2
    np.testing.assert_allclose(seen.numpy(), [[0, 0, 1, 0.5, -1, 1, 0, 0, 1, 1, 0.2]], atol=1e-7)


def test_frames_are_flattened_oldest_first():
    inputs = VectorInput(EnvSpec("toy", VECTOR, DISCRETE), ["obs"], 2)
    obs = torch.arange(16.0).reshape(2, 2, 4)
    assert torch.equal(inputs({"obs": obs}, None), obs.reshape(2, 8))
    assert inputs.size == 8


def test_image_input_puts_frames_and_keys_along_channels():
    spec = EnvSpec(
        "toy",
        {"a": ArraySpec("uint8", (2, 3, 1), layout="HWC"), "b": ArraySpec("uint8", (2, 2, 3), layout="CHW")},
        DISCRETE,
    )
    inputs = ImageInput(spec, ["a", "b"], 2)
    assert (inputs.channels, inputs.height, inputs.width) == (6, 2, 3)
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 256, (5, 4, 2, 2, 3, 1), dtype=torch.uint8, generator=generator)
    b = torch.randint(0, 256, (5, 4, 2, 2, 2, 3), dtype=torch.uint8, generator=generator)
    seen, lead = inputs({"a": a, "b": b})
    assert seen.shape == (20, 6, 2, 3) and tuple(lead) == (5, 4)
    torch.testing.assert_close(seen.reshape(5, 4, 6, 2, 3)[1, 2, 1], a[1, 2, 1, :, :, 0] / 255.0)
    torch.testing.assert_close(seen.reshape(5, 4, 6, 2, 3)[1, 2, 4], b[1, 2, 1, 0] / 255.0)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_ensemble_equals_its_members_one_by_one(layer_norm):
    torch.manual_seed(0)
    q = QEnsemble(EnvSpec("toy", VECTOR, TWO), 3, [8, 8], layer_norm=layer_norm)
    obs, action = torch.randn(5, 4), torch.rand(5, 2) * 2 - 1
    together = q({"next_obs/obs": obs}, action, prefix="next_obs/")
    assert together.shape == (3, 5)
    for m in range(3):
        x = torch.cat([obs, action], 1)
        for layer in q.layers:
            x = x @ layer.weight[m] + layer.bias[m]
            x = torch.relu(functional.layer_norm(x, x.shape[-1:]) if layer_norm else x)
        expected = x @ q.output.weight[m] + q.output.bias[m]
        torch.testing.assert_close(together[m], expected.squeeze(-1), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(together[0], together[1])


def test_make_q_reads_settings_of_policies_and_refuses_discrete_actions():
    config = mlp.Config(critic_hidden=[16], critic_group="privileged")
    observation = VECTOR | {"state": ArraySpec("float32", (3,))}
    spec = EnvSpec("toy", observation, TWO, groups={"policy": ["obs"], "privileged": ["obs", "state"]})
    q = make_q(config, spec, 2)
    assert q.layers_in == 4 + 3 + 2 and q.layers[0].weight.shape == (2, 9, 16)
    with pytest.raises(SpecError, match="continuous"):
        make_q(config, EnvSpec("toy", VECTOR, DISCRETE), 2)


def test_squashed_samples_have_gradient_and_other_heads_refuse():
    spec = EnvSpec("toy", VECTOR, TWO)
    policy = mlp.make(mlp.Config(head="tanh_gaussian"), spec, critic=False)
    batch = {"obs/obs": torch.randn(6, 4), "noise": torch.randn(6, 2)}
    drawn = policy(batch, ("sample",))
    assert torch.equal(drawn["squashed"], torch.tanh(drawn["sample"]))
    scored = policy(batch | {"action": drawn["sample"].detach()}, ("log_prob",))["log_prob"]
    torch.testing.assert_close(scored, drawn["sample_log_prob"])
    (drawn["sample_log_prob"] - drawn["squashed"].sum(-1)).mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters())
    with pytest.raises(SpecError, match="set policy.head: tanh_gaussian"):
        mlp.make(mlp.Config(), spec, critic=False)(batch, ("sample",))


def test_log_std_starts_where_the_settings_say():
    spec = EnvSpec("toy", VECTOR, TWO)
    for head in ("gaussian", "tanh_gaussian"):
        policy = mlp.make(mlp.Config(head=head, log_std_init=-1.5), spec, critic=False)
        raw = policy.output(policy.encoder(torch.zeros(1, 4)))
        torch.testing.assert_close(policy.head(raw)[1].flatten(), torch.full((2,), -1.5))


def test_weights_do_not_depend_on_the_critic():
    for module in (mlp, recurrent):
        built = []
        for critic in (True, False):
            torch.manual_seed(3)
            built.append(module.make(module.Config(), EnvSpec("toy", VECTOR, DISCRETE), critic=critic))
        with_critic, without = (policy.state_dict() for policy in built)
        assert {n for n in with_critic if not n.startswith("critic.")} == set(without)
        assert all(torch.equal(with_critic[name], without[name]) for name in without)


def test_messages_name_what_to_do():
    spec = EnvSpec("toy", VECTOR, DISCRETE)
    with pytest.raises(SpecError, match="set policy.name: mlp"):
        cnn.make(cnn.Config(), spec, critic=False)
    with pytest.raises(SpecError, match="no observation group 'privileged'"):
        mlp.make(mlp.Config(critic_group="privileged"), spec, critic=True)
    policy = mlp.make(mlp.Config(), spec, critic=False)
    with pytest.raises(SpecError, match="without its critic"):
        policy({"obs/obs": torch.zeros(1, 4)}, ("value",))
    with pytest.raises(SpecError, match="mode 'best'"):
        policy.act({"obs": np.zeros((1, 4), np.float32)}, None, Ask("best"), np.zeros(1, np.uint64))
