"""Flow and diffusion: steps by hand, samplers against closed forms, what has no density, rows kept apart."""

import math

import numpy as np
import pytest
import torch

from rollbus_core import rng
from rollbus_policies import base, diffusion, flow, text
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

LINE = EnvSpec(
    "line", {"x": ArraySpec("float32", (2,))}, ActionSpec("continuous", (1,), low=[-1.0], high=[1.0])
)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1}
NORMAL = 0.5 * math.log(2 * math.pi)


def seeds(num, stream="test"):
    return rng.decision_seeds(rng.stream(3, stream), np.arange(num), np.zeros(num, int))


def make(module, spec=LINE, critic=False, **settings):
    torch.manual_seed(0)
    config = module.Config(**(SMALL | {"chunk": 1} | settings))
    policy = base.make(config, spec, critic=critic)
    with torch.no_grad():
        policy.output.weight.mul_(100.0)
    return policy


def with_velocity(policy, field):
    """The same policy with velocity ``field(x, t)``."""
    policy.velocity = lambda x, time, context: (field(x, time.view(-1, 1, 1)), x[..., :0])
    return policy


def obs(num):
    return {"x": np.random.default_rng(0).normal(size=(num, 2)).astype(np.float32)}


def batch_of(observed, act):
    columns = {f"obs/{key}": torch.from_numpy(value) for key, value in observed.items()}
    return columns | {"action": torch.from_numpy(act.action)}


# With x = 1 and v = 2: x_data = 1 - 2 t, x_noise = 1 + 2 (1 - t); dt = 1/2.
STEPS = {
    # t = 1: s^2 = 1/4 of the next t; 1/2 x_data + (1/2 - 1/16) x_noise, x_data -1, x_noise 1.
    ("flow_sde", 0): (-0.5 + 0.4375, math.sqrt(0.125)),
    # t = 1/2: x_data 0, x_noise 2, weight 0 - 1/8.
    ("flow_sde", 1): (-0.25, math.sqrt(0.125)),
    ("flow_cps", 0): (-0.5 + 0.5 * math.cos(math.pi / 4), 0.5 * math.sin(math.pi / 4)),
}


@pytest.mark.parametrize(("sampler", "step"), STEPS)
def test_a_flow_step_by_hand(sampler, step):
    policy = with_velocity(make(flow, sampler=sampler, steps=2), lambda x, t: torch.full_like(x, 2.0))
    mean, std = STEPS[sampler, step]
    after = torch.full((1, 1, 1), mean + 2.0 * std)
    log_prob, entropy = policy.score(torch.ones(1, 1, 1), after, torch.tensor([step]), None)
    assert log_prob.item() == pytest.approx(-2.0 - math.log(std) - NORMAL, abs=1e-5)
    assert entropy.item() == pytest.approx(0.5 + NORMAL + math.log(std), abs=1e-5)
    found = policy.transition(torch.ones(1, 1, 1), torch.tensor([step]), None)
    assert [part.item() for part in found] == pytest.approx([mean, std], abs=1e-6)


def ends(policy, start):
    act = policy.act(obs(len(start)), None, Ask("sample", noise=start[:, None, None]), seeds(len(start)))
    return act.action[:, -2]


def test_ode_on_a_linear_field_is_the_closed_form():
    start = np.linspace(-1, 1, 5, dtype=np.float32)
    for steps in (2, 8, 64):
        policy = with_velocity(make(flow, sampler="ode", steps=steps), lambda x, t: 0.8 * x)
        np.testing.assert_allclose(ends(policy, start), start * (1 - 0.8 / steps) ** steps, rtol=1e-5)
    np.testing.assert_allclose(ends(policy, start), start * math.exp(-0.8), rtol=0.01)


def test_ode_on_a_straight_field_arrives_in_any_number_of_steps():
    for steps in (1, 3, 10):
        policy = with_velocity(make(flow, sampler="ode", steps=steps), lambda x, t: (x - 0.3) / t)
        np.testing.assert_allclose(ends(policy, np.array([-2.0, 0.5, 1.0], np.float32)), 0.3, atol=1e-5)


def test_flow_sde_keeps_the_marginals_of_the_ode():
    """Data N(0.2, 0.3^2): the velocity that is exact for it, and 20,000 samples."""
    mean, spread = 0.2, 0.3

    def field(x, t):
        variance = (1 - t) ** 2 * spread**2 + t**2
        gain = (t - (1 - t) * spread**2) / variance
        return -mean + gain * (x - (1 - t) * mean)

    policy = with_velocity(make(flow, sampler="flow_sde", steps=64), field)
    act = policy.act(obs(20_000), None, Ask("sample"), seeds(20_000))
    assert act.action[:, -2].mean() == pytest.approx(mean, abs=0.02)
    assert act.action[:, -2].std() == pytest.approx(spread, abs=0.03)


@pytest.mark.parametrize("eta", [1.0, 0.3])
def test_a_diffusion_step_by_hand(eta):
    """The posterior of DDPM (2006.11239, equation 7) for eta 1; by scalars for other eta."""
    policy = make(diffusion, steps=4, levels=8, eta=eta, min_std=1e-3)
    policy.denoised = lambda x, time, context: torch.full_like(x, 0.25)
    kept = [float(policy.kept[i]) for i in (4, 2)]
    now, then = kept
    x = 0.4
    clean = (x - math.sqrt(1 - now) * 0.25) / math.sqrt(now)
    assert abs(clean) < 1
    std = eta * math.sqrt((1 - then) / (1 - now) * (1 - now / then))
    mean = math.sqrt(then) * clean + math.sqrt(1 - then - std**2) * 0.25
    if eta == 1.0:
        beta = 1 - now / then
        posterior = (
            math.sqrt(then) * beta / (1 - now) * clean + math.sqrt(1 - beta) * (1 - then) / (1 - now) * x
        )
        assert mean == pytest.approx(posterior, abs=1e-6)
    log_prob, _ = policy.score(
        torch.full((1, 1, 1), x), torch.full((1, 1, 1), mean - std), torch.tensor([2]), None
    )
    assert log_prob.item() == pytest.approx(-0.5 - math.log(std) - NORMAL, abs=1e-4)


def test_the_last_denoising_step_has_the_smallest_deviation():
    policy = make(diffusion, steps=4, levels=8, min_std=0.1)
    _, std = policy.transition(torch.zeros(2, 1, 1), torch.tensor([3, 3]), context_of(policy, 2))
    assert std.flatten().tolist() == pytest.approx([0.1, 0.1])


def context_of(policy, num):
    return policy.context({"x": torch.from_numpy(obs(num)["x"])}, None)


FAMILIES = {
    "flow_sde": (flow, {"sampler": "flow_sde"}),
    "flow_cps": (flow, {"sampler": "flow_cps"}),
    "flow_noise": (flow, {"sampler": "flow_noise"}),
    "diffusion": (diffusion, {"steps": 4}),
    "one": (flow, {"stochastic_steps": "one"}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_actors_and_learners_score_alike_in_batches_of_other_sizes(name):
    module, settings = FAMILIES[name]
    policy = make(module, chunk=3, execute=2, **settings)
    observed = obs(32)
    act = policy.act(observed, None, Ask("sample", ("log_prob", "entropy")), seeds(32))
    whole = batch_of(observed, act)
    same = policy(whole, ("log_prob",))["log_prob"].detach().numpy()
    assert np.array_equal(same, torch.from_numpy(act.extras["log_prob"]).sum(-1).numpy())
    parts = [policy({n: c[i : i + 5] for n, c in whole.items()}, ("log_prob",)) for i in range(0, 32, 5)]
    scored = torch.cat([part["log_prob"] for part in parts]).detach().numpy()
    smallest_std, scored_dims = 0.08, 2 * len(policy.noisy_steps)
    assert np.abs(scored - same).max() / scored_dims * smallest_std <= 1e-5
    assert abs(np.exp(scored - same).mean() - 1) <= 1e-4


def test_cps_scores_no_step_that_adds_no_noise():
    policy = make(flow, sampler="flow_cps", steps=3, stochastic_steps="one")
    assert policy.noisy_steps == (0, 1)
    act = policy.act(obs(64), None, Ask("sample", ("log_prob",)), seeds(64))
    assert set(act.action[:, -1].tolist()) == {0.0, 1.0}
    batch = batch_of(obs(64), act)
    batch["action"][0, -1] = 2.0
    with pytest.raises(SpecError, match="no density"):
        policy(batch, ("log_prob",))


@pytest.mark.parametrize(("sampler", "steps"), [("ode", 4), ("flow_cps", 1), ("flow_sde", 1)])
def test_without_noise_there_is_no_log_prob(sampler, steps):
    policy = make(flow, sampler=sampler, steps=steps)
    assert "log_prob" not in policy.spec.extras and "log_prob" in policy.config.lacks()
    act = policy.act(obs(3), None, Ask("sample"), seeds(3))
    with pytest.raises(SpecError, match="adds no noise"):
        policy(batch_of(obs(3), act), ("log_prob",))


def test_learned_deviations_stay_within_their_bounds():
    policy = make(flow, sampler="flow_noise")
    with torch.no_grad():
        policy.output.bias[1] = 50.0
    _, high = policy.velocity(torch.zeros(2, 1, 1), torch.ones(2), context_of(policy, 2))
    with torch.no_grad():
        policy.output.bias[1] = -50.0
    _, low = policy.velocity(torch.zeros(2, 1, 1), torch.ones(2), context_of(policy, 2))
    assert high.max().item() == pytest.approx(0.16) and low.min().item() == pytest.approx(0.08)


@pytest.mark.parametrize("name", ["flow_sde", "flow_noise", "diffusion"])
def test_a_sample_with_gradient_is_scored_as_a_chain(name):
    module, settings = FAMILIES[name]
    policy = make(module, **settings)
    columns = {"obs/x": torch.from_numpy(obs(6)["x"])}
    noise = torch.randn(6, policy.spec.noise, generator=torch.Generator().manual_seed(1))
    drawn = policy(columns | {"noise": noise}, ("sample",))
    start = (-0.5 * noise[:, 0] ** 2) - NORMAL
    scored = policy(columns | {"action": drawn["sample"].detach()}, ("log_prob",))["log_prob"]
    torch.testing.assert_close(drawn["sample_log_prob"], scored + start, rtol=1e-3, atol=1e-3)
    (slope,) = torch.autograd.grad(drawn["squashed"].sum(), policy.output.weight)
    assert slope.abs().max() > 0


def test_demonstrations_come_back():
    spec = EnvSpec("box", LINE.observation, ActionSpec("continuous", (2,), low=[-2.0, 0.0], high=[2.0, 1.0]))
    policy = make(flow, spec, chunk=3, execute=2)
    shown = np.random.default_rng(0).uniform([-2, 0], [2, 1], (5, 3, 2)).astype(np.float32)
    stored = policy.from_env_action(shown)
    assert stored.shape == (5, *policy.spec.action[1])
    np.testing.assert_allclose(policy.env_action(stored), shown[:, :2], atol=1e-6)


def test_instructions_of_other_rows_and_padding_change_nothing():
    words = ArraySpec("uint8", (24,), 0, 255, layout="tokens")
    spec = EnvSpec("told", {"told": words, "x": LINE.observation["x"]}, LINE.action)
    policy = make(flow, spec)

    def decided(*told):
        rows = {
            "told": np.stack([text.encode(line, 24) for line in told]),
            "x": obs(1)["x"].repeat(len(told), 0),
        }
        return policy.act(rows, None, Ask("sample", ("log_prob",)), seeds(1).repeat(len(told)))

    one, other = decided("push the red cube", "stop"), decided("push the red cube", "lift the blue ball")
    assert np.array_equal(one.action[0], other.action[0])
    assert not np.array_equal(other.action[0], other.action[1])
    # What stands in the embedding of padding is not seen.
    with torch.no_grad():
        policy.context.tokens[0].embed.weight[0] += 1.0
    assert np.array_equal(decided("push the red cube", "stop").action, one.action)


def test_text_comes_back_and_what_does_not_fit_is_refused():
    assert text.decode(text.encode("fetch the cup, é", 20)) == "fetch the cup, é"
    with pytest.raises(SpecError, match="5 bytes, 4 fit"):
        text.encode("hello", 4)
