"""Every file of rollbus_policies against the contract in rollbus_policies.base, on specs of all kinds."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch

from rollbus_core import rng
from rollbus_policies import base
from rollbus_policies._executed import executed
from rollbus_wire import lookup
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

ROWS = 6
NAMES = lookup.names("rollbus_policies")
ACTIONS = {
    "discrete": ActionSpec("discrete", num=[5]),
    "multi_discrete": ActionSpec("multi_discrete", (3,), num=[2, 4, 3]),
    "continuous": ActionSpec("continuous", (2,), low=[-2.0, 0.0], high=[2.0, 1.0]),
}
VECTOR = ArraySpec("float32", (4,))
IMAGE = ArraySpec("uint8", (16, 16, 3), low=0, high=255, layout="HWC", channels="RGB")
TOKEN = ArraySpec("int64", (), low=0, high=6, layout="tokens")
COMPLETION = ActionSpec("multi_discrete", (3,), num=[7] * 3, layout="tokens", end_token=1)
PROMPT = ArraySpec("int64", (5,), low=0, high=6, layout="tokens")
PRIVILEGED = {"policy": ["image", "vector", "token"], "privileged": ["secret", "vector", "image"]}
SPECS = {
    **{f"vector-{kind}": EnvSpec("toy", {"obs": VECTOR}, action) for kind, action in ACTIONS.items()},
    **{f"image-{kind}": EnvSpec("toy", {"obs": IMAGE}, action) for kind, action in ACTIONS.items()},
    "token": EnvSpec("toy", {"obs": TOKEN}, ACTIONS["discrete"]),
    "prompt": EnvSpec("toy", {"obs": PROMPT}, COMPLETION),
    "dict": EnvSpec(
        "toy",
        {"image": IMAGE, "vector": VECTOR, "token": TOKEN, "secret": VECTOR},
        ACTIONS["discrete"],
        groups=PRIVILEGED,
    ),
}
SETTINGS = [
    {},
    {"normalise_obs": True, "critic": "shared", "chunk": 3, "execute": 2},
    {"critic": "own", "chunk": 1, "cell": "lstm", "architecture": "impala"},
]


def observations(spec, lead, frame_stack, seed=0):
    """Random numpy observations [*lead, (K,) *shape] of every key."""
    generator, result = np.random.default_rng(seed), {}
    for key, array in spec.observation.items():
        shape = (*lead, *([frame_stack] if frame_stack > 1 else []), *array.shape)
        if array.dtype == "float32":
            result[key] = generator.normal(size=shape).astype(np.float32)
        else:
            result[key] = generator.integers(0, int(array.high) + 1, shape).astype(array.dtype)
    return result


#: Attention is tested at sizes that cost little.
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "steps": 3}
#: Cases that a family does not claim.
REFUSED = {}


def fields(name):
    return lookup.find("rollbus_policies", name).Config.model_fields


def heads(name, spec):
    """Settings of the action distribution that ``name`` has for ``spec``."""
    if "head" not in fields(name) or spec.action.kind != "continuous":
        return [{}]
    return [{}, {"head": "tanh_gaussian"}]


def cases():
    """All combinations for families of perceptrons; attention costs more, so specs take settings in turn."""
    for name in NAMES:
        for number, (key, spec) in enumerate(SPECS.items()):
            every = list(enumerate(zip(SETTINGS, (1, 1, 3))))
            chosen = [every[number % len(every)]] if "width" in fields(name) else every
            for head in heads(name, spec) if len(chosen) > 1 else heads(name, spec)[-1:]:
                for i, (settings, frames) in chosen:
                    own = {k: v for k, v in (SMALL | settings).items() if k in fields(name)} | head
                    label = f"{name}-{key}-{own.get('head', 'auto')}-{i}-{frames}"
                    yield pytest.param((name, key, own, frames), id=label)


CASES = list(cases())


class Case:
    """One policy on one spec, and batches for it."""

    def __init__(self, name, key, settings, frames):
        self.spec, self.frames = SPECS[key], frames
        self.plugin = lookup.find("rollbus_policies", name)
        grouped = "privileged" in self.spec.groups and "critic_group" in fields(name)
        group = {"critic_group": "privileged"} if grouped else {}
        self.config = self.plugin.Config(name=name, **settings, **group)
        case = (name, key, str(settings), frames)
        try:
            if case not in REFUSED:
                self.policy = self.make()
        except SpecError as error:
            REFUSED[case] = f"not claimed: {error}"
        if case in REFUSED:
            pytest.skip(REFUSED[case])
        self.obs = observations(self.spec, (ROWS,), frames)
        self.seeds = rng.decision_seeds(rng.stream(7, "test"), np.arange(ROWS), np.zeros(ROWS, int))
        size = self.policy.spec.state_size
        self.state = np.random.default_rng(1).normal(size=(ROWS, size)).astype(np.float32) if size else None

    def make(self, critic=True, seed=0):
        torch.manual_seed(seed)
        return base.make(self.config, self.spec, critic=critic, frame_stack=self.frames)

    def act(self, mode="sample", want=("log_prob", "value", "entropy"), policy=None, **changed):
        given = {"obs": self.obs, "state": self.state, "seeds": self.seeds} | changed
        return (policy or self.policy).act(given["obs"], given["state"], base.Ask(mode, want), given["seeds"])

    def batch(self, act):
        """The decisions of ``act`` as the learner sees them (one step of a sequence where recurrent)."""
        columns = {f"obs/{key}": torch.from_numpy(value) for key, value in self.obs.items()}
        columns["action"] = torch.from_numpy(act.action)
        if self.state is None:
            return columns
        columns = {name: column[None] for name, column in columns.items()}
        start = torch.zeros(1, ROWS, dtype=torch.bool)
        return columns | {"state": torch.from_numpy(self.state), "start": start}

    def score(self, act, want, policy=None):
        scored = (policy or self.policy)(self.batch(act), want)
        return scored if self.state is None else {n: v[0] for n, v in scored.items()}


@pytest.fixture
def case(request):
    return Case(*request.param)


def every_case(test):
    return pytest.mark.parametrize("case", CASES, indirect=True)(test)


@pytest.mark.parametrize("name", NAMES)
def test_plugin_imports_without_torch(name):
    code = (
        f"import sys; from rollbus_wire import lookup; m = lookup.find('rollbus_policies', {name!r}); "
        "m.Config(); assert m.needs and m.Config.offers; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_described_and_named_as_the_file(name):
    config = lookup.find("rollbus_policies", name).Config
    assert config().name == name
    assert all(field.description for key, field in config.model_fields.items() if key != "name")


@pytest.mark.parametrize("name", NAMES)
def test_some_specs_are_claimed(name):
    made = 0
    for spec in SPECS.values():
        config = lookup.find("rollbus_policies", name).Config()
        try:
            base.make(config, spec, critic=True)
            made += 1
        except SpecError:
            pass
    assert made


@every_case
def test_shapes_and_dtypes(case):
    for mode in ("sample", "mode", "random", ["sample", "mode", "random"] * 2):
        act, spec = case.act(mode, tuple(case.policy.spec.extras)), case.spec.action
        dtype, shape = case.policy.spec.action
        assert act.action.shape == (ROWS, *shape) and act.action.dtype == dtype
        made = case.policy.spec
        several = (made.execute,) if made.chunk > 1 else ()
        assert act.env_action.shape == (ROWS, *several, *spec.shape) and act.env_action.dtype == spec.dtype
        for name, (extra_dtype, extra_shape) in case.policy.spec.extras.items():
            assert act.extras[name].shape == (ROWS, *extra_shape)
            assert act.extras[name].dtype == extra_dtype and np.isfinite(act.extras[name]).all()
        if spec.kind == "continuous":
            assert (act.env_action >= spec.low).all() and (act.env_action <= spec.high).all()
        else:
            assert (act.env_action >= 0).all() and (act.env_action < spec.num).all()
        assert (act.state is None) == (case.policy.spec.state == "none")
        if act.state is not None:
            assert act.state.shape == (ROWS, case.policy.spec.state_size)
            assert act.state.dtype == np.float32


@every_case
def test_noise_is_a_function_of_the_seed(case):
    for mode in ("sample", "random"):
        first, again = case.act(mode), case.act(mode)
        other = case.act(mode, seeds=case.seeds + np.uint64(1))
        assert np.array_equal(first.action, again.action)
        assert not np.array_equal(first.action, other.action)
    one, two = case.act("mode"), case.act("mode", seeds=case.seeds + np.uint64(1))
    assert np.array_equal(one.action, two.action) != case.policy.spec.generative


@every_case
def test_rows_do_not_depend_on_their_neighbours(case):
    changed = observations(case.spec, (ROWS,), case.frames, seed=5)
    changed = {key: np.concatenate([case.obs[key][:1], value[1:]]) for key, value in changed.items()}
    seeds = np.concatenate([case.seeds[:1], case.seeds[1:] + np.uint64(9)])
    state = None if case.state is None else np.concatenate([case.state[:1], case.state[1:] * 2])
    for mode in ("sample", ["sample", "random"] * (ROWS // 2)):
        one, two = case.act(mode), case.act(mode, obs=changed, seeds=seeds, state=state)
        assert np.array_equal(one.action[0], two.action[0])
        assert np.array_equal(one.env_action[0], two.env_action[0])
        for name in one.extras:
            assert np.array_equal(one.extras[name][0], two.extras[name][0])


@every_case
def test_mixed_modes_equal_the_pure_ones(case):
    modes = ["sample", "mode", "random"] * (ROWS // 3)
    mixed = case.act(modes).action
    for i, mode in enumerate(modes):
        assert np.array_equal(mixed[i], case.act(mode).action[i])


@every_case
def test_act_and_forward_agree(case):
    want = ("log_prob", "value", "entropy")
    for mode in ("sample", "mode", "random"):
        act = case.act(mode, want)
        scored = case.score(act, want)
        for name in want:
            acted = act.extras[name]
            if name == "log_prob" and case.policy.spec.chunk > 1:
                acted = executed(torch.from_numpy(acted), None).numpy()
            # Tokens are scored as they are generated, with keys and values that were kept.
            allowed = 1e-5 if "token_log_prob" in case.policy.spec.extras else 0.0
            if getattr(case.config, "cell", "") == "lstm":
                allowed = 2e-6  # oneDNN's kernel with gradient rounds otherwise than the one without
            assert np.abs(scored[name].detach().numpy() - acted).max() <= allowed, (mode, name)


@every_case
def test_gradient_reaches_every_parameter(case):
    scored = case.score(case.act(), ("log_prob", "value", "entropy"))
    sum(value.sum() for value in scored.values()).backward()
    for name, parameter in case.policy.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@every_case
def test_state_dict_carries_everything(case):
    columns = case.batch(case.act())
    lead = (ROWS,) if case.state is None else (1, ROWS)
    case.policy.update_normaliser(columns, torch.ones(lead, dtype=torch.bool))
    other = case.make(seed=1)
    before = case.act(policy=other)
    other.load_state_dict(copy.deepcopy(case.policy.state_dict()))
    one, two = case.act(), case.act(policy=other)
    assert np.array_equal(one.action, two.action)
    assert all(np.array_equal(one.extras[name], two.extras[name]) for name in one.extras)
    assert not np.array_equal(one.extras["value"], before.extras["value"])
    tensors = case.policy.state_dict()
    assert len({t.data_ptr() for t in tensors.values() if t.numel()}) == len(tensors)


@every_case
def test_actor_needs_no_critic(case):
    actor = case.make(critic=False, seed=2)
    tensors = case.policy.state_dict()
    actor.load_state_dict({n: t for n, t in tensors.items() if not n.startswith("critic.")})
    assert "value" not in actor.spec.extras
    one, two = case.act(want=("log_prob",)), case.act(want=("log_prob",), policy=actor)
    assert np.array_equal(one.action, two.action)
    assert np.array_equal(one.extras["log_prob"], two.extras["log_prob"])
    with pytest.raises(SpecError):
        case.act(want=("value",), policy=actor)


@every_case
def test_read_only_observations_are_taken(case, recwarn):
    for value in case.obs.values():
        value.flags.writeable = False
    case.act()
    assert not [w for w in recwarn if "writ" in str(w.message)]
