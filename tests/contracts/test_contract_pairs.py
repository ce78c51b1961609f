"""Every pair of docs/must_work.yaml trains: twenty updates on one batch that the policy itself decided.

They lower what is regressed, values or clones, and make what scored well likelier than what did not, as
far as an algorithm does each: `CRITERIA`.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from rollbus_core import rng
from rollbus_launch import matrix
from rollbus_learner import optim
from rollbus_learner.algorithm import Progress
from rollbus_learner.loop import update
from rollbus_policies import base
from rollbus_policies._condition import CONDITION, POOR
from rollbus_policies.base import Ask
from rollbus_wire import lookup
from rollbus_wire.spec import EXPERT_ACTION

MUST = yaml.safe_load((Path(__file__).parents[2] / "docs" / "must_work.yaml").read_text())
NOW = Progress(updates=0, env_steps=0, total_steps=1000)
ROWS, DRAWS = 32, 16
SMALL = {"width": 16, "num_heads": 2, "heads": 2, "layers": 1, "expert_layers": 1, "hidden": [32], "depth": 1}


#: Heads and networks that no pair needs, with a policy and algorithms that they are for.
VARIANTS = {
    "gsde": ("mlp", {"head": "gsde", "log_std_init": -2.0}, ("ppo", "grpo", "sft")),
    "tanh_gsde": ("mlp", {"head": "tanh_gsde", "log_std_init": -2.0}, ("sac", "crossq", "ppo")),
    "impala": ("cnn", {"architecture": "impala"}, ("ppo", "sft")),
    "lstm": ("recurrent", {"cell": "lstm"}, ("ppo", "vtrace", "sft")),
    "two_hot": ("mlp", {"value_head": "two_hot", "value_limit": 10.0}, ("ppo", "decoupled_ppo", "vtrace")),
}


GROUPS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "dapo", "gspo")
#: Algorithm -> losses that must fall, and what must set good apart: "log_prob", or a loss in its place.
CRITERIA = {
    **dict.fromkeys(("ppo", "decoupled_ppo", "vtrace", "dppo"), (("value_loss",), "log_prob")),
    # On one batch cloning all actions works against telling them apart, so its loss need not fall.
    "cotrain": (("value_loss",), "log_prob"),
    # A group is its own baseline, as are a teacher and the policy that acted: no value is learned.
    **dict.fromkeys((*GROUPS, "opd", "nft"), ((), "log_prob")),
    **dict.fromkeys(("sac", "crossq", "rlpd"), (("critic_loss",), "log_prob")),
    # They weigh or label what is cloned; a flow has no density there but the loss that it is cloned by.
    "iql": (("critic_loss",), "cloning_loss"),
    **dict.fromkeys(("recap", "steam"), (("cloning_loss",), "cloning_loss")),
    # What they train makes noise or changes actions, and gives no density of those that were taken.
    **dict.fromkeys(("dsrl", "rlt"), (("critic_loss",), "")),
    # All that an expert shows is good.
    **dict.fromkeys(("sft", "dagger", "hg_dagger"), (("cloning_loss",), "")),
}


def cases():
    for algorithm, policies in MUST.items():
        for policy in policies:
            yield pytest.param(policy, algorithm, {}, id=f"{algorithm}-{policy}")
    for name, (policy, settings, algorithms) in VARIANTS.items():
        for algorithm in algorithms:
            yield pytest.param(policy, algorithm, settings, id=f"{algorithm}-{name}")


class Pair:
    """A policy, an algorithm, and one batch of whole one-decision episodes."""

    def __init__(self, policy_name, algorithm_name, settings):
        torch.manual_seed(0)
        found = [p for p in matrix.pairs([policy_name], [algorithm_name]) if not p.reason]
        assert found, [p.reason for p in matrix.pairs([policy_name], [algorithm_name])]
        chosen = next((p for p in found if p.action in ("continuous", "tokens")), found[0])
        self.spec = matrix.SPECS[chosen.action]
        plugin = lookup.find(matrix.POLICIES, policy_name)
        known = {k: v for k, v in SMALL.items() if k in plugin.Config.model_fields}
        known |= chosen.settings | settings
        policy_config = plugin.Config(name=policy_name, **known)
        module = lookup.find(matrix.ALGORITHMS, algorithm_name)
        fields = module.Config.model_fields
        # One step of Adam moves what is made of 800 inputs by up to 800 times its rate.
        rate = 1e-3 if "max_lag" in fields else 3e-3
        tried = {"num_groups": 4, "group_size": 8, "batch_size": ROWS, "learning_rate": rate, "num_steps": 2,
                 "minibatches": 1, "epochs": 1, "steps_per_update": 1, "updates_per_step": 1.0,
                 "policy_delay": 1}  # fmt: skip
        # The clips of GSPO are for thousands of small updates.
        tried |= {"clip": 0.2, "clip_high": 0.2} if algorithm_name == "gspo" else {}
        # Scores differ by tenths.
        tried |= {"beta": 30.0} if algorithm_name == "iql" else {}
        config = module.Config(name=algorithm_name, **{k: v for k, v in tried.items() if k in fields})
        feeds = config.feeds(num_envs=ROWS, num_slices=1, deterministic=False)
        self.feed = next(iter(feeds.values())).offered(policy_config.offers)
        self.policy = base.make(policy_config, self.spec, critic="value" in config.requires)
        self.algorithm = module.make(config, self.spec, self.policy, self.feed)
        self.roles = {name: role.module for name, role in self.algorithm.roles().items()}
        for name, role in self.algorithm.roles().items():
            if not role.trainable:
                self.roles[name].requires_grad_(False)
        if "teacher" in self.roles:
            with torch.no_grad():
                for parameter in self.roles["teacher"].parameters():
                    parameter += 0.2 * torch.randn_like(parameter)
        self.optimisers = optim.build(self.algorithm.steps(), self.roles)
        self.streams = [name for name in list(feeds)[1:] if name != "validation"]
        self.decided()

    def decided(self):
        """Observations, and what the policy does on them."""
        generator = np.random.default_rng(0)
        # Eight rows see the same, but where the observation is what makes the noise (gSDE).
        alike = 8 if self.policy.spec.held_noise is None else 1
        self.obs = {
            key: np.repeat(self.drawn(generator, array, ROWS // alike), alike, 1)
            for key, array in self.spec.observation.items()
        }
        size = self.policy.spec.state_size
        self.state = np.zeros((ROWS, size), np.float32) if size else None
        seeds = rng.decision_seeds(rng.stream(0, "pairs"), np.arange(ROWS), np.zeros(ROWS, int))
        first = {key: value[0] for key, value in self.obs.items()}
        self.act = self.policy.act(first, self.state, Ask("sample", self.feed.extras), seeds)
        executed = self.act.env_action.reshape(ROWS, -1).astype(np.float32)
        self.score = torch.from_numpy(executed.mean(1))

    def drawn(self, generator, array, num):
        """[2, num, ...]: this observation and the next."""
        shape = (2, num, *array.shape)
        if array.dtype == "float32":
            return generator.normal(size=shape).astype(np.float32)
        return generator.integers(1, int(array.high) + 1, shape).astype(array.dtype)

    def columns(self, lead):
        """Columns of both units; ``lead`` is [1, N] or [B]."""
        no = torch.zeros(lead, dtype=torch.bool)
        steps = self.policy.spec.execute if self.policy.spec.chunk > 1 else 1
        reward = torch.zeros(*lead, steps)
        reward[..., 0] = self.score.reshape(lead)
        shaped = {}
        for name, value in {"action": self.act.action, "env_action": self.act.env_action}.items():
            shaped[name] = torch.from_numpy(np.array(value)).reshape(*lead, *value.shape[1:])
        return shaped | {
            "reward": reward, "num_steps": torch.full(lead, steps, dtype=torch.int32),
            "terminated": ~no, "truncated": no, "interrupted": no, "valid": ~no,
        }  # fmt: skip

    def taught(self, one):
        """What an expert says, where the algorithm asks for one."""
        if self.feed.expert is None:
            return {}
        env_action = torch.from_numpy(np.array(self.act.env_action))
        return {
            f"obs/{EXPERT_ACTION}": env_action.reshape(*one.shape, *env_action.shape[1:]),
            "source": 2 * one,
        }

    def batch(self):
        tensors = {key: torch.from_numpy(value) for key, value in self.obs.items()}
        if self.feed.unit == "sequence":
            whole = {f"obs/{key}": value[:1] for key, value in tensors.items()}
            whole |= self.columns((1, ROWS)) | {"start": torch.ones(1, ROWS, dtype=torch.bool)}
            whole |= self.taught(torch.ones(1, ROWS, dtype=torch.uint8))
            return whole | {f"{s}/{name}": column for s in self.streams for name, column in whole.items()}
        if self.feed.unit == "step":
            one = self.columns((ROWS,))
            for key, value in tensors.items():
                one |= {f"obs/{key}": value[0], f"next_obs/{key}": value[1]}
            one["final_slot"] = torch.zeros(ROWS, dtype=torch.int32)
            one |= self.taught(torch.ones(ROWS, dtype=torch.uint8))
            # The best third is good, the worst poor, of the rest it is not known.
            place = self.score.argsort().argsort()
            one["label"] = torch.where(place < ROWS // 3, 0, torch.where(place >= 2 * ROWS // 3, 1, -1))
            others = {f"{s}/{name}": column for s in self.streams for name, column in one.items()}
            return one | others
        lead = (1, ROWS)
        batch = self.columns(lead) | {f"obs/{key}": value for key, value in tensors.items()}
        for name, extra in self.act.extras.items():
            value = torch.from_numpy(np.array(extra)).reshape(*lead, *extra.shape[1:])
            batch[name] = value.sum(-1) if name == "log_prob" and value.ndim > 2 else value
        batch |= {f"final_obs/{key}": value[1] for key, value in tensors.items()}
        batch |= {
            "final_slot": torch.arange(ROWS, dtype=torch.int32).reshape(lead),
            "lengths": torch.ones(ROWS, dtype=torch.int32), "version": torch.zeros(lead, dtype=torch.int64),
            "episode": torch.arange(ROWS).reshape(lead), "step": torch.zeros(lead, dtype=torch.int32),
            "start": torch.ones(lead, dtype=torch.bool),
        }  # fmt: skip
        if self.state is not None:
            batch["state"] = torch.from_numpy(self.state)
        one = self.columns((ROWS,)) | {f"obs/{key}": value[0] for key, value in tensors.items()}
        return batch | {f"{s}/{name}": column for s in self.streams for name, column in one.items()}

    def lead(self, by):
        """How much further ahead of the rest what is good is, in nats or in the loss of cloning.

        Of a policy that is told a label: how much more so if it is told good than if it is told poor.
        """
        seen = self.batch()
        if self.feed.unit == "chunk":
            seen = {n: c[:1] if n.startswith("obs/") else c for n, c in seen.items()}
        told = [seen]
        if type(self.algorithm.config).needs_label:
            told.append(seen | {f"obs/{CONDITION}": torch.full(self.score.shape, POOR)})
        found = [self.scored(each, by) for each in told]
        ahead = found[0] - found[1] if found[1:] else found[0]
        good, bad = self.judged(seen)
        return float(ahead[good].mean() - ahead[bad].mean())

    def scored(self, seen, by):
        """Log-prob of each row, or minus the loss in its place, a mean over draws of its noise."""
        if by == "log_prob":
            with torch.no_grad():
                return self.policy(seen, (by,))[by].flatten()
        torch.manual_seed(1)  # the same noise before and after
        shown = seen | {"action": seen["env_action"]}
        with torch.no_grad():
            return -torch.stack([self.policy(shown, (by,))[by].flatten() for _ in range(DRAWS)]).mean(0)

    def judged(self, seen):
        """Which rows are good and which are bad: by label, by what a teacher thinks, by score."""
        if type(self.algorithm.config).needs_label:
            return seen["label"] == 1, seen["label"] == 0
        score = self.liked(seen) if "teacher" in self.roles else self.score
        return score > score.median(), score <= score.median()

    def liked(self, seen):
        """How much likelier the teacher finds each action than the policy that acted did."""
        with torch.no_grad():
            thought = self.roles["teacher"](seen, ("log_prob",))["log_prob"].flatten()
        return thought - seen["log_prob"].flatten()


@pytest.mark.parametrize(("policy", "algorithm", "settings"), cases())
def test_the_pair_trains(policy, algorithm, settings):
    pair = Pair(policy, algorithm, settings)
    falling, by = CRITERIA[algorithm]
    generator, told = torch.Generator().manual_seed(0), []
    before = pair.lead(by) if by else 0.0
    for _ in range(20):
        torch.manual_seed(1)  # the same noise in every loss, so that losses compare
        metrics = update(pair.algorithm, pair.roles, pair.optimisers, pair.batch(), NOW, generator)
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        told.append(metrics)
    for name in falling:
        assert told[-1][name] < told[0][name], name
    assert not by or pair.lead(by) > before


def test_all_that_must_work_has_criteria():
    assert set(MUST) <= set(CRITERIA) and all(falling or by for falling, by in CRITERIA.values())


def test_the_list_and_the_document_agree():
    text = (Path(__file__).parents[2] / "docs" / "support.md").read_text()
    for algorithm, policies in MUST.items():
        for policy in policies:
            assert f"| {policy} |" in text and f" {algorithm} |" in text
