"""Every policy file learns from one fixed batch: policy gradient, cloning, and which engine acts with it."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rollbus_actor.engines._trunk import no_trunk
from rollbus_actor.engines.base import make_engine
from rollbus_core import rng
from rollbus_core.config import plugins
from rollbus_core.version import Version
from rollbus_policies import base
from rollbus_wire import lookup
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "policies"))

ROWS = 32
BOX = ActionSpec("continuous", (2,), low=[-1.0, 0.0], high=[1.0, 2.0])
SPECS = {
    "vector": EnvSpec("vector", {"obs": ArraySpec("float32", (3,))}, BOX),
    "image": EnvSpec("image", {"obs": ArraySpec("uint8", (8, 8, 3), 0, 255, layout="HWC")}, BOX),
    "tokens": EnvSpec(
        "tokens", {"obs": ArraySpec("int64", (4,), 0, 5, layout="tokens")},
        ActionSpec("multi_discrete", (2,), num=[6, 6], layout="tokens", end_token=5),
    ),
}  # fmt: skip
#: "." makes it a dotted path, as any user's module has.
OWN = "rollbus_own.policy"
NAMES = [*lookup.names("rollbus_policies"), OWN]
#: Networks of a family beside its default.
VARIANTS = [("cnn", {"architecture": "impala"}), ("recurrent", {"cell": "lstm"})]
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1}


@pytest.fixture(scope="module", autouse=True)
def own_policy():
    """The example of docs/policies.md under a dotted name."""
    import own_policy

    sys.modules["rollbus_own"] = type(sys)("rollbus_own")
    sys.modules[OWN] = own_policy
    yield
    del sys.modules[OWN], sys.modules["rollbus_own"]


class Fixed:
    """A policy, its decisions on one batch, and demonstrations that depend on what is observed."""

    def __init__(self, name, **settings):
        torch.manual_seed(0)
        module = lookup.find("rollbus_policies", name)
        known = module.Config.model_fields
        self.config = module.Config(name=name, **{k: v for k, v in SMALL.items() if k in known}, **settings)
        self.policy, self.spec = self.made()
        generator = np.random.default_rng(0)
        array = self.spec.observation["obs"]
        if array.dtype == "float32":
            obs = generator.normal(size=(ROWS, *array.shape)).astype(np.float32)
        else:
            obs = generator.integers(0, int(array.high) + 1, (ROWS, *array.shape)).astype(array.dtype)
        self.obs, made = {"obs": obs}, self.policy.spec
        size = made.state_size
        self.state = np.zeros((ROWS, size), np.float32) if size else None
        self.seeds = rng.decision_seeds(rng.stream(0, "learn"), np.arange(ROWS), np.zeros(ROWS, int))
        shape = (ROWS, *([made.chunk] if made.chunk > 1 else []), *self.spec.action.shape)
        level = obs.reshape(ROWS, -1).astype(np.float32).mean(1)
        level = ((level - level.mean()) / level.std()).reshape(-1, *[1] * (len(shape) - 1))
        if self.spec.action.kind == "continuous":
            self.shown = (0.5 + np.clip(0.4 * level, -0.4, 0.4) * np.ones(shape)).astype(np.float32)
        else:
            self.shown = ((level > 0) * np.ones(shape)).astype(np.int64)

    def made(self):
        for spec in SPECS.values():
            try:
                return base.make(self.config, spec, critic=True), spec
            except SpecError:
                continue
        raise AssertionError(f"{self.config.name} is made for none of {list(SPECS)}")

    def batch(self, action):
        columns = {"obs/obs": torch.from_numpy(self.obs["obs"]), "action": torch.from_numpy(action)}
        if self.state is None:
            return columns
        start = torch.ones(1, ROWS, dtype=torch.bool)
        columns = {name: column[None] for name, column in columns.items()}
        return columns | {"state": torch.from_numpy(self.state), "start": start}

    def steps(self, loss, num, rate=3e-3):
        """``num`` steps of Adam; the losses."""
        optimiser, losses = torch.optim.Adam(self.policy.parameters(), rate), []
        for _ in range(num):
            value = loss()
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            losses.append(value.item())
        return losses


@pytest.fixture(
    params=[(name, {}) for name in NAMES] + VARIANTS,
    ids=lambda param: "-".join([param[0], *param[1].values()]),
)
def fixed(request):
    name, settings = request.param
    return Fixed(name, **settings)


def test_twenty_updates_prefer_what_was_better(fixed):
    """PPO's surrogate: log-probs of A > 0 rise over those of A < 0, and the value comes nearer."""
    act = fixed.policy.act(fixed.obs, fixed.state, base.Ask("sample"), fixed.seeds)
    batch = fixed.batch(act.action)
    sign = torch.from_numpy(np.where(np.arange(ROWS) % 2 == 0, 1.0, -1.0).astype(np.float32))
    before = fixed.policy(batch, ("log_prob", "value"))
    start, far = before["log_prob"].detach(), (before["value"] - sign).pow(2).mean().item()

    def loss():
        new = fixed.policy(batch, ("log_prob", "value", "entropy"))
        ratio = (new["log_prob"] - start).exp()
        surrogate = torch.maximum(-sign * ratio, -sign * ratio.clamp(0.8, 1.2)).mean()
        return surrogate + 0.5 * (new["value"] - sign).pow(2).mean()

    fixed.steps(loss, 20)
    after = fixed.policy(batch, ("log_prob", "value"))
    moved = ((after["log_prob"] - start).detach() * sign).mean().item()
    assert moved > 0.02 and math.isfinite(moved)
    assert (after["value"] - sign).pow(2).mean().item() < far


def test_cloning_loss_falls_and_demonstrations_are_imitated(fixed):
    batch = fixed.batch(fixed.shown)

    def loss():
        each = fixed.policy(batch, ("cloning_loss",))["cloning_loss"]
        assert each.numel() == ROWS
        return each.mean()

    def distance():
        ask = base.Ask("mode")
        acted = fixed.policy.act(fixed.obs, fixed.state, ask, fixed.seeds).env_action
        return np.abs(acted - fixed.shown.reshape(acted.shape)).mean()

    far = distance()
    losses = fixed.steps(loss, 60)
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:5])
    assert distance() < far


def test_padded_demonstrations_change_nothing(fixed):
    if fixed.policy.spec.chunk == 1:
        pytest.skip("decisions hold one action")
    valid = torch.ones(ROWS, fixed.policy.spec.chunk, dtype=torch.bool)
    valid[:, -1] = False
    losses = []
    for padding in (0.0, 0.9):
        shown = fixed.shown.copy()
        shown[:, -1] = padding
        torch.manual_seed(1)
        batch = fixed.batch(shown) | {"action_valid": valid}
        losses.append(fixed.policy(batch, ("cloning_loss",))["cloning_loss"].detach())
    if not fixed.policy.spec.generative:
        # A generative policy's network sees all noised actions of a chunk together.
        assert torch.equal(*losses)
    assert all(torch.isfinite(loss).all() for loss in losses)


def test_auto_serves_it_or_says_why_torch_does(fixed):
    engine = make_engine("auto", fixed.policy, device="cpu")
    engine.pin(Version(0, 1))
    act = engine.act(fixed.obs, fixed.state, base.Ask("sample", ("log_prob",)), fixed.seeds).act
    reason = no_trunk(fixed.policy)
    if reason:
        assert engine.choice == f"torch_local: {reason}"
        expected = fixed.policy.act(fixed.obs, fixed.state, base.Ask("sample", ("log_prob",)), fixed.seeds)
        assert np.array_equal(act.extras["log_prob"], expected.extras["log_prob"])
    else:
        assert "us for 32 rows" in engine.choice


def test_a_dotted_name_is_a_policy_of_a_recipe():
    assert plugins.section_model("policy", OWN)().width == 8
