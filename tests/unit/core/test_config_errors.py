"""What is wrong with a recipe is said before a process starts: key, place, value, what to do (T15)."""

# ruff: noqa: E501

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollbus_core.config.load import load, load_resolved
from rollbus_wire.errors import ConfigError, MissingPackage

ENV = "env: {name: config_fakes.reach, num_envs: 8}\n"
POLICY = "policy: {name: config_fakes.silent}\n"
ALGORITHM = "algorithm:\n  name: config_fakes.learn\n"
PLUGINS = ENV + POLICY + ALGORITHM


@pytest.fixture
def refuse(tmp_path, monkeypatch):
    """The lines of the error that a recipe gives."""
    monkeypatch.chdir(tmp_path)

    def refuse(text: str, *overrides: str) -> list[str]:
        Path("r.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            load("r.yaml", overrides)
        return str(caught.value).splitlines()

    return refuse


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  lerning_rate: 1e-4\n", "r.yaml:5: unknown key 'algorithm.lerning_rate' (value 0.0001); did you mean 'algorithm.learning_rate'?"),
        ("  lr: 1e-4\n", "r.yaml:5: unknown key 'algorithm.lr' (value 0.0001); did you mean 'algorithm.learning_rate'?"),
        ("lr: 1e-4\n", "r.yaml:5: unknown key 'lr' (value 0.0001); did you mean 'algorithm.learning_rate'?"),
        ("  total_steps: 5\n", "r.yaml:5: unknown key 'algorithm.total_steps' (value 5); did you mean 'run.total_steps'?"),
        ("evaluation: {}\n", "did you mean 'eval'?"),
        ("algoritm: {gamma: 1}\n", "did you mean 'algorithm'?"),
        ("  xyzzy: 1\n", "r.yaml:5: unknown key 'algorithm.xyzzy' (value 1)"),
        ("  expectile: 1\n", "r.yaml:5: unknown key 'algorithm.expectile' (value 1); it is a key of algorithm iql"),
        ("  num_steps: many\n", "r.yaml:5: algorithm.num_steps is 'many', must be an integer >= 1 in decisions"),
        ("  num_steps: 2.5\n", "must be an integer >= 1"),
        ("  num_steps: true\n", "algorithm.num_steps is True, must be an integer"),
        ("  num_steps: '3'\n", "algorithm.num_steps is '3', must be an integer"),
        ("  learning_rate: 0\n", "r.yaml:5: algorithm.learning_rate is 0, must be a number > 0"),
        ("  learning_rate: .nan\n", "algorithm.learning_rate is '.nan', must be a number > 0"),
        ("  milestones: [1, x]\n", "algorithm.milestones is [1, 'x'], must be a list (each a number) (1: "),
        ("run: {resume: maybe}\n", "run.resume is 'maybe', must be one of auto, never, must"),
        ("  slab_bytez: 1\n", "did you mean 'broker.slab_bytes'?"),
        (f"run: {{seed: {2**63}}}\n", f"run.seed is {2**63}, must be an integer >= 0 and <= {2**63 - 1}"),
        (f"eval: {{seed: {2**63}}}\n", f"eval.seed is {2**63}, must be an integer >= 0 and <= {2**63 - 1}"),
        ("run: {audit: 1}\n", "run.audit is 1, must be true or false"),
        ("run: {name: ../up}\n", "run.name is '../up', must be a string (a folder's name: letters, digits, spaces and . = + - _, up to 100 of them)"),
        ('run: {name: "a\\0b"}\n', "run.name is 'a\\x00b', must be a string (a folder's name"),
        ("learner: {threads: 1025}\n", "learner.threads is 1025, must be an integer >= 1 and <= 1024"),
        ("learner: {rewards: [{source: 'a:b'}, {source: 'a:b', wieght: 1}]}\n", "r.yaml:5: unknown key 'learner.rewards.1.wieght'; there are source, weight, name, form; did you mean 'weight'?"),
        ("run: 3\n", "r.yaml:5: 'run' is a section with keys of its own, not 3"),
    ],
)  # fmt: skip
def test_key_and_value(refuse, text, line):
    lines = refuse(PLUGINS + text)
    assert len(lines) == 1 and line in lines[0]


def test_names_that_are_only_a_little_alike_are_not_suggested(refuse):
    (line,) = refuse(PLUGINS, "policy.strata=[32]")
    assert line == "command line: unknown key 'policy.strata' (value [32])"


def test_a_key_the_algorithm_refuses_is_blamed_where_it_was_set(refuse):
    recipe = "env: {name: config_fakes.reach, num_envs: 8}\nalgorithm: {name: ppo, num_steps: 16}\n"
    (line,) = refuse(recipe, "algorithm.minibatches=100000")
    assert line.startswith("command line: algorithm.minibatches: algorithm 'ppo'")
    assert line.endswith("the other keys: env.num_envs (r.yaml:1), algorithm.num_steps (r.yaml:2)")
    (line,) = refuse(recipe.replace("16", "16, minibatches: 100000"))
    assert line.startswith("r.yaml:2: algorithm.minibatches: ")


def test_everything_is_reported_at_once(refuse):
    lines = refuse(PLUGINS + "  lr: 1\n  num_steps: x\nrun: {seed: -1}\n", "policy.width=0", "env.bogus=2")
    assert len(lines) == 5
    assert any("command line: policy.width is 0, must be an integer >= 1" in line for line in lines)
    assert any("command line: unknown key 'env.bogus' (value 2)" in line for line in lines)
    assert any("r.yaml:7: run.seed is -1" in line for line in lines)


def test_unknown_plugins_do_not_hide_other_errors(refuse):
    lines = refuse(
        "env: {name: config_fakes.nothing, speed: 3}\nalgorithm: {name: pppo}\nrun: {seed: x}\n" + POLICY
    )
    assert len(lines) == 3
    assert lines[0].startswith("r.yaml:1: env.name:") and "config_fakes.nothing" in lines[0]
    assert lines[1].startswith("r.yaml:2: algorithm.name: 'pppo' is not one of") and "'ppo'" in lines[1]


def test_plugin_contracts(refuse):
    assert "may not redefine the common key 'num_envs'" in refuse("env: {name: config_fakes.clash}\n")[0]
    assert "has no Config" in refuse("env: {name: config_fakes.__init__}\n")[0]
    assert refuse(PLUGINS, "env.speed=-2") == ["r.yaml:1: env: speed -2.0 is negative"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "r.yaml is empty"),
        ("# only a comment\n", "r.yaml is empty"),
        ("- a\n", "r.yaml:1: a recipe is a mapping of sections such as 'env:', not a list"),
        ("hello\n", "r.yaml:1: a recipe is a mapping of sections such as 'env:', not a value"),
        ("run:\n\tseed: 1\n", "r.yaml:2: a tab; YAML is indented with spaces"),
        ("run: {seed: 1\n", "r.yaml:2: not readable as YAML"),
        ("run: {seed: 1}\nrun: {}\n", "r.yaml:2: key 'run' is given twice, first in line 1"),
        ("run:\n  seed: 1\n  seed: 2\n", "r.yaml:3: key 'seed' is given twice, first in line 2"),
        ("env:\n  kwargs: {a: 1, a: 2}\n", "r.yaml:2: key 'a' is given twice"),
        (
            "run: {seed: !!python/object:os.system 1}\n",
            "r.yaml:1: tag tag:yaml.org,2002:python/object:os.system",
        ),
    ],
)
def test_files(refuse, text, expected):
    assert expected in refuse(text)[0]


def test_missing_file():
    with pytest.raises(ConfigError, match=r"no/such\.yaml does not exist; give the path of a recipe"):
        load("no/such.yaml")


def test_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder; give a \.yaml file"):
        load(tmp_path)


@pytest.mark.parametrize("override", ["run.seed", "=3", "run..seed=3", "run=3", "run.name=[", "run.sed=3"])
def test_overrides(refuse, override):
    lines = refuse(PLUGINS, override)
    assert len(lines) == 1 and lines[0].startswith("command line: ")


def test_an_empty_value_is_called_so(refuse):
    assert refuse(PLUGINS, "run.seed=")[0].startswith("command line: run.seed is empty, must be an integer")
    assert refuse(PLUGINS, "run.seed=''")[0].startswith("command line: run.seed is empty, must be")
    assert refuse(PLUGINS + "run:\n  seed:\n")[0].startswith("r.yaml:6: run.seed is empty, must be")
    assert refuse(PLUGINS, "run.seed=null")[0].startswith("command line: run.seed is None, must be")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["algorithm.name=config_fakes.greedy"], "needs a reparameterised sample (sample); policy 'config_fakes.silent' offers log_prob"),
        (["env.num_slices=3"], "r.yaml:1: env.num_envs: 8 rows cannot be divided into 3 equal slices"),
        (["env.num_slices=4", "env.hubs=3"], "4 slices cannot be divided over 3 hubs"),
        (["actor.count=99999"], "command line: actor.count: 99,999 processes, but no run has more than 1,024 of one kind; set it lower"),
        (["env.num_envs=2048", "env.num_slices=2048", "env.hubs=2048"], "env.hubs: 2,048 processes, but"),
        (["env.placement=workers", "env.workers=600", "env.hubs=2"], "env.workers: 1,200 processes, but"),
        (["run.deterministic=true"], "set algorithm.max_lag=0"),
        (["run.deterministic=true", "algorithm.max_lag=0", "actor.threads=2"], "set actor.threads=1"),
        (["run.deterministic=true", "algorithm.max_lag=0", "env.tick_deadline_s=1"], "set env.tick_deadline_s=0"),
        (["run.deterministic=true", "algorithm.max_lag=0", "actor.decoding=continuous"], "set actor.decoding=whole"),
        (["stop_when.eval_return=1"], "eval.every_steps is 0; set eval.every_steps"),
        (["stop_when.eval_return=1", "eval.every_steps=10", "stop_when.episodes=21"], "asks for 21 episodes, but an evaluation has eval.episodes = 20"),
        (["deploy.processes=[broker, hub, actor]"], "lacks learner"),
        (["deploy.processes=[broker, hub+hub, actor, learner]"], "names 'hub' 2 times"),
        (["deploy.processes=[broker, hub, actor, learner, learners]"], "unknown service 'learners'; services are broker, hub, actor, learner, evaluator, source; did you mean 'learner'?"),
        (["broker.lost_after_s=0.6"], "less than two heartbeats"),
        (["env.workers=3"], "command line: env.workers: has no effect, because env.placement is inline"),
        (["env.listen=tcp://127.0.0.1:5555"], "env.listen: has no effect"),
        (["env.listen=tcp://127.0.0.1:5555", "env.placement=workers"], "env.listen: has no effect"),
        (["eval.listen=tcp://127.0.0.1:5555"], "eval.listen: has no effect"),
        (["eval.start_return=1"], "eval.start_return: has no effect"),
        (["env.placement=dial_in"], "eval.listen (default): is empty, but env.placement is dial_in"),
        (["env.placement=dial_in", "eval.listen=tcp://0.0.0.0:5555"], "command line: eval.listen: tcp://0.0.0.0:5555 is reachable from other machines"),
        (["env.placement=dial_in", "eval.listen=tcp://127.0.0.1:5555", "env.listen=127.0.0.1:1"], "env.listen: address '127.0.0.1:1' is neither ipc://PATH nor tcp://HOST:PORT"),
        (["env.placement=dial_in", "eval.listen=tcp://127.0.0.1:5555", "env.listen=tcp://127.0.0.1:5555"], "give each an address of its own"),
        (["actor.engine_options={foo: 3}"], "command line: actor.engine_options: actor.engine_options ['foo']: engine 'auto' has no settings; set actor.engine to the engine"),
        (["actor.engine=torch_local", "actor.engine_options={mod: eager}"], "actor.engine_options.mod is 'eager': "),
        (["actor.device=gpu"], "command line: actor.device: is 'gpu'; give auto, cpu, cuda:N, musa:N, npu:N, xpu:N"),
        (["learner.device=cuda:first"], "learner.device: is 'cuda:first'; give auto, cpu, cuda:N"),
        (["learner.device=cuda", "deploy.backend=cpu"], "learner.device: is 'cuda'; give auto, cpu with deploy.backend cpu"),
        (["learner.rewards=[{source: 'late:judge'}, {source: 'm:judge'}]"], "has 'judge' more than once; give each a name of its own"),
        (["learner.rewards=[{source: 'late:judge', name: me}]"], "source 'late:judge': late:NAME, which is its name"),
        (["learner.rewards=[{source: 'late:judge'}]", "run.deterministic=true", "algorithm.max_lag=0"], "late:judge comes when it comes; run.deterministic: true cannot have it"),
        (["learner.late_deadline_s=2"], "learner.late_deadline_s: has no effect, because no source of learner.rewards is late:NAME"),
        (["stop_when.episodes=5"], "stop_when.episodes: has no effect"),
        (["env.options={values: {a: 1}}"], "command line: env.options: has no name; sources are curriculum, fixed, progress, random"),
        (["env.options={name: random, values: {a: {uniform: [2, 1]}}}"], "env.options: a: uniform is [low, high] with low below high, came [2, 1]"),
        (["eval.options={name: progress, levels: [{a: 1}, {a: 2}]}"], "eval.options: progress answers to outcomes"),
        (["run.deterministic=true", "algorithm.max_lag=0", "env.options={name: curriculum, levels: [{a: 1}, {a: 2}]}"], "env.options: curriculum answers to outcomes"),
        (["env.num_envs=9", "env.num_slices=1", "algorithm.num_steps=1"], "with env.num_envs = 9, env.num_slices = 1: env.num_envs x algorithm.num_steps = 9 is no multiple of 4"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(refuse, overrides, expected):
    lines = refuse(PLUGINS, *overrides)
    assert len(lines) == 1 and expected in lines[0]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("policy.hidden=[64, 0]", "policy.hidden is [64, 0], must be a list (each an integer >= 1 and <= 65536) (1: must be greater"),
        ("policy.critic_hidden=[-3]", "policy.critic_hidden is [-3], must be a list (each an integer >= 1 and <= 65536)"),
        ("algorithm.critic_hidden=[0]", "algorithm.critic_hidden is [0], must be a list (each an integer >= 1 and <= 65536)"),
    ],
)  # fmt: skip
def test_layers_have_a_width(refuse, override, expected):
    recipe = "policy: {name: mlp, head: tanh_gaussian}\nalgorithm: {name: sac}\n"
    (line,) = refuse(recipe, override)
    assert line.startswith("command line: ") and expected in line


def test_what_an_algorithm_may_learn_from_but_a_head_lacks_is_named(refuse):
    recipe = "run: {total_updates: 1}\nalgorithm: {name: sft}\ndata: {sources: [{path: d}]}\n"
    (line,) = refuse(recipe, "policy.head=deterministic")
    assert line.endswith("(log_prob); head deterministic gives none; set policy.head: auto")


def test_kernels_of_the_environment(refuse, monkeypatch):
    monkeypatch.setenv("ROLLBUS_KERNELS", "cuda")
    (line,) = refuse(PLUGINS)
    assert "ROLLBUS_KERNELS" in line and "'cuda'" in line and "auto, triton, numba, reference" in line


def test_an_engine_without_its_package(refuse, monkeypatch):
    from rollbus_actor.engines import onnx

    monkeypatch.setattr(onnx, "needs", ("numpy", "a_package_that_is_not_there"))
    (line,) = refuse(PLUGINS, "actor.engine=onnx")
    assert (
        "needs a_package_that_is_not_there, which is not installed; run: pip install a_package_that" in line
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["env.placement=workers", "env.workers=3"],
        ["env.placement=dial_in", "env.listen=tcp://127.0.0.1:5555", "eval.listen=tcp://127.0.0.1:5556"],
        ["run.deterministic=true", "algorithm.max_lag=0"],
        ["stop_when.eval_return=1", "eval.every_steps=10", "stop_when.episodes=20"],
        ["deploy.processes=[learner + broker, actor+hub]"],
        [
            "env.options={name: curriculum, levels: [{a: 1}, {a: 2}]}",
            "eval.options={name: fixed, values: {a: 2}}",
        ],
        ["run.deterministic=true", "algorithm.max_lag=0", "env.options={name: random, values: {a: 1}}"],
    ],
)
def test_settings_that_fit(tmp_path, overrides):
    path = tmp_path / "r.yaml"
    path.write_text(PLUGINS)
    load(path, overrides)


def test_missing_package(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(POLICY + ALGORITHM + "env: {name: config_fakes.lacking}\n")
    with pytest.raises(MissingPackage) as caught:
        load(path)
    text = str(caught.value)
    assert "needs no_such_simulator[extra], which is not installed" in text
    assert text.endswith("run: pip install 'no_such_simulator[extra]'")
    assert load_resolved(path).recipe.env.name == "config_fakes.lacking"
    # Environments that dial in bring their own interpreter.
    load(path, ["env.placement=dial_in", "eval.listen=tcp://127.0.0.1:5556"])


@pytest.mark.parametrize("name", ["gymnasium", "vector"])
@pytest.mark.parametrize(
    ("package", "extra", "env_id"),
    [("mujoco", "mujoco", "HalfCheetah-v5"), ("mujoco", "mujoco", "Ant-v4"), ("Box2D", "box2d", "LunarLander-v3")],
)  # fmt: skip
def test_packages_that_depend_on_settings(tmp_path, monkeypatch, name, package, extra, env_id):
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "r.yaml"
    path.write_text(POLICY + ALGORITHM + f"env: {{name: {name}, id: {env_id}, num_envs: 8}}\n")
    with pytest.raises(MissingPackage) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:4: env.name: env {name!r} needs {package}, which is not installed; "
        f"run: pip install 'gymnasium[{extra}]'"
    )
    load(path, ["env.id=CartPole-v1"])
    load(path, ["env.placement=dial_in", "eval.listen=tcp://127.0.0.1:5556"])


TOY = "env: {name: toy, kind: continuous, num_envs: 8}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "policy: {name: flow, sampler: ode}\nalgorithm: {name: ppo}\n",
            "(log_prob); sampler ode adds no noise; set policy.sampler: flow_sde",
        ),
        (
            "policy: {name: mlp}\nalgorithm: {name: sac}\n",
            "(sample); head auto gives none; set policy.head: tanh_gaussian, of continuous actions only",
        ),
        (
            "policy: {name: mlp, chunk: 2, execute: 3}\nalgorithm: {name: ppo}\n",
            "execute 3 is more than the 2 actions of a decision",
        ),
        (
            "policy: {name: tokens}\nalgorithm: {name: sac}\n",
            "needs a reparameterised sample (sample); policy 'tokens' offers cloning_loss, entropy",
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_with_the_remedy(refuse, text, expected):
    assert any(expected in line for line in refuse(TOY + text))


def test_repeated_actions_and_several_per_decision_exclude_each_other(refuse):
    text = TOY + "policy: {name: mlp, chunk: 2}\nalgorithm: {name: ppo}\n"
    assert any(
        "env.action_repeat" in line and "policy.execute=1" in line
        for line in refuse(text, "env.action_repeat=2")
    )


def test_what_no_learner_can_count_with_is_refused(refuse):
    (line,) = refuse(PLUGINS, "env.tick_deadline_s=1e300")
    assert "1e+300 is beyond the range of float32" in line


def test_what_is_no_file_is_not_read():
    with pytest.raises(ConfigError, match=r"/dev/zero is no file; give a \.yaml file"):
        load("/dev/zero")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "algorithm:\n  num_steps: 99999999999999999999\n",
            "algorithm.num_steps: 99,999,999,999,999,999,999 is beyond 64 bits",
        ),
        ("algorithm:\n  num_steps: 99999999999\n", "steps are more than 2,147,483,648 samples at once"),
        ("env: {num_envs: 2000000000}\n", "rows per slice, at most 65,536; set env.num_envs lower"),
    ],
)
def test_sizes_that_no_run_has(refuse, text, line):
    assert any(line in each for each in refuse(text)), refuse(text)


def test_values_and_problems_without_end_are_cut(refuse) -> None:
    lines = refuse(PLUGINS + f"run: {{total_steps: '{'5' * 90_000}'}}\n")
    assert len(lines) == 1 and len(lines[0]) < 1100
    assert "run.total_steps is '555" in lines[0] and lines[0].endswith(
        "555', must be an integer >= 1 in steps"
    )
    lines = refuse(PLUGINS + "run: {" + ", ".join(f"wrong{number}: 1" for number in range(120)) + "}\n")
    assert len(lines) == 51 and lines[-1] == "and 70 more problems"


def test_widths_that_no_layer_has_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("env: {name: toy}\n")
    with pytest.raises(ConfigError, match=r"policy.hidden is \[64, 1000000000\], must be a list .*<= 65536"):
        load("r.yaml", ["policy.hidden=[64, 1000000000]"])
    assert load("r.yaml", ["policy.hidden=[65536]", "run.name=a b-1.2=x+y"]).recipe.policy.hidden == [65536]


def test_a_file_of_ones_own_is_named_with_its_function(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("env: {name: toy}\npolicy: {name: my_net_of_here}\n")
    with pytest.raises(ConfigError, match="is not one of"):
        load("r.yaml")
    Path("my_net_of_here.py").write_text("def make(size): ...\n")
    with pytest.raises(ConfigError, match="of my_net_of_here.py here write my_net_of_here:make"):
        load("r.yaml")


def test_rotations_without_their_package_are_refused_before_anything_starts(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("env: {name: toy, rotations: {pose: quat_xyzw}}\n")
    load("r.yaml")
    monkeypatch.setattr("rollbus_core.extras.ROTATIONS", ("no_scipy_here",))
    with pytest.raises(MissingPackage, match="r.yaml:1: env.rotations: rotations need no_scipy_here"):
        load("r.yaml")


def test_single_steps_of_a_recurrent_policy_are_refused(refuse) -> None:
    recipe = "env: {name: toy}\npolicy: {name: recurrent, head: tanh_gaussian}\nalgorithm: {name: sac}\n"
    assert refuse(recipe) == [
        "r.yaml:2: policy.name: algorithm 'sac' learns from single steps; use a policy without recurrent state"
    ]
