"""Step by step decoding against whole passes: rows come and go, and none notices the others."""

import numpy as np
import pytest
import torch

from rollbus_core import rng
from rollbus_policies import tokens
from rollbus_policies.base import Act, Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

PROMPT, LONGEST, VOCABULARY = 6, 40, 12
WANT = ("log_prob", "token_log_prob", "entropy", "value")
SPEC = EnvSpec(
    "toy",
    {"prompt": ArraySpec("int64", (PROMPT,), 0, VOCABULARY - 1, layout="tokens")},
    ActionSpec("multi_discrete", (LONGEST,), num=[VOCABULARY] * LONGEST, layout="tokens", end_token=1),
)


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    made = tokens.make(tokens.Config(width=32), SPEC, critic=True)
    with torch.no_grad():
        made.output.weight.mul_(4.0)
    return made


def rows(num, seed=0):
    """Prompts of all lengths, and seeds."""
    generator = np.random.default_rng(seed)
    prompts = generator.integers(2, VOCABULARY, (num, PROMPT))
    prompts[np.arange(PROMPT) >= generator.integers(1, PROMPT + 1, num)[:, None]] = 0
    return {"prompt": prompts}, rng.decision_seeds(rng.stream(1, "test"), np.arange(num), np.full(num, seed))


def lengths(act):
    ended = act.action == 1
    return np.where(ended.any(1), ended.argmax(1) + 1, LONGEST)


def assert_same(found: Act, expected: Act):
    assert found.action.dtype == expected.action.dtype == np.int64
    assert np.array_equal(found.action, expected.action)
    for name in WANT:
        assert found.extras[name].dtype == np.float32
        np.testing.assert_allclose(found.extras[name], expected.extras[name], rtol=1e-5, atol=1e-5)


def part(act, chosen):
    return Act(
        act.env_action[chosen], act.action[chosen],
        extras={name: value[chosen] for name, value in act.extras.items()},
    )  # fmt: skip


class Beside:
    """A decoder whose decisions are compared with those of a whole pass over all rows."""

    def __init__(self, policy, num, modes="sample", seed=0):
        self.obs, self.seeds = rows(num, seed)
        self.modes = modes
        self.whole = policy.act(self.obs, None, Ask(modes, WANT), self.seeds)
        self.decoder, self.row_of, self.seen = policy.decoder(WANT), {}, {}
        self.num_steps = 0

    def admit(self, chosen):
        modes = self.modes if isinstance(self.modes, str) else [self.modes[row] for row in chosen]
        obs = {"prompt": self.obs["prompt"][chosen]}
        numbers = self.decoder.admit(obs, modes, self.seeds[chosen])
        self.row_of |= dict(zip(numbers.tolist(), chosen, strict=True))
        return numbers

    def step(self):
        """One step; the rows that are done, each as the whole pass has it."""
        self.num_steps += 1
        done = self.decoder.step()
        if done is None:
            return []
        chosen = [self.row_of[number] for number in done[0].tolist()]
        assert_same(done[1], part(self.whole, chosen))
        self.seen |= dict.fromkeys(chosen, self.num_steps)
        return chosen


def test_all_rows_at_once_leave_one_after_the_other(policy):
    beside = Beside(policy, 24)
    lasts = lengths(beside.whole)
    assert len(set(lasts.tolist())) > 8
    beside.admit(list(range(24)))
    while beside.decoder.num_rows:
        have = beside.decoder.num_rows
        assert have == (lasts > beside.num_steps).sum()
        beside.step()
    assert beside.seen == dict(enumerate(lasts.tolist()))


def test_rows_that_come_at_different_times_do_not_notice_each_other(policy):
    beside, generator = Beside(policy, 60), np.random.default_rng(3)
    waiting, admitted = list(range(60)), {}
    while waiting or beside.decoder.num_rows:
        num = min(len(waiting), int(generator.integers(0, 5)))
        if num:
            coming, waiting = waiting[:num], waiting[num:]
            beside.admit(coming)
            admitted |= dict.fromkeys(coming, beside.num_steps)
        if beside.decoder.num_rows:
            beside.step()
    took = {row: at - admitted[row] for row, at in beside.seen.items()}
    assert took == dict(enumerate(lengths(beside.whole).tolist()))


def test_rows_come_again_after_all_have_left(policy):
    beside = Beside(policy, 9)
    for start in (0, 5):
        beside.admit(list(range(start, min(start + 5, 9))))
        while beside.decoder.num_rows:
            beside.step()
    assert sorted(beside.seen) == list(range(9))


def test_modes_of_rows_may_differ(policy):
    modes = [("sample", "mode", "random")[row % 3] for row in range(18)]
    beside = Beside(policy, 18, modes)
    alike = policy.act(beside.obs, None, Ask("mode", WANT), beside.seeds)
    assert np.array_equal(alike.action[1::3], beside.whole.action[1::3])
    for start in range(0, 18, 3):
        beside.admit(list(range(start, start + 3)))
        beside.step()
    while beside.decoder.num_rows:
        beside.step()
    assert sorted(beside.seen) == list(range(18))


def test_a_place_is_used_again_and_nothing_of_its_former_row_is_seen(policy):
    beside = Beside(policy, 40)
    beside.admit(list(range(8)))
    size, waiting = beside.decoder._slots.size, list(range(8, 40))
    while beside.decoder.num_rows:
        for _ in beside.step():
            if waiting:
                with torch.inference_mode():
                    beside.decoder._kept.kept[:, :, beside.decoder.num_rows :] = float("nan")
                beside.admit([waiting.pop(0)])
    assert sorted(beside.seen) == list(range(40))
    assert beside.decoder._slots.size == beside.decoder._kept.kept.shape[2] == size == 8


def test_places_double_where_there_are_too_few(policy):
    beside = Beside(policy, 20)
    sizes = []
    for start in range(0, 20, 4):
        beside.admit(list(range(start, start + 4)))
        sizes.append(beside.decoder._kept.kept.shape[2])
    assert sizes == [4, 8, 16, 16, 32]
    while beside.decoder.num_rows:
        beside.step()
    assert sorted(beside.seen) == list(range(20))


def test_dropped_rows_leave_without_a_decision(policy):
    beside = Beside(policy, 24)
    first, second = beside.admit(list(range(12))), beside.admit(list(range(12, 24)))
    assert second.min() > first.max()
    beside.decoder.drop(first[3:6])
    beside.step()
    beside.step()
    beside.decoder.drop(np.concatenate([first[:2], first[3:6], [10_000]]))
    while beside.decoder.num_rows:
        beside.step()
    gone = {0, 1, 3, 4, 5} - {row for row, at in beside.seen.items() if at <= 2}
    assert set(beside.seen) == set(range(24)) - gone
    assert not {3, 4, 5} & set(beside.seen)


def test_random_numbers_in_blocks_are_those_of_one_draw():
    seeds = rng.decision_seeds(rng.stream(5, "test"), np.arange(4), np.zeros(4, int))
    whole = rng.uniform(seeds, 50)
    starts = np.array([0, 7, 20, 33])
    behind = rng.uniform(rng.skip(seeds, starts), 17)
    for row, start in enumerate(starts):
        assert np.array_equal(behind[row], whole[row, start : start + 17])


def test_what_cannot_be_is_refused(policy):
    obs, seeds = rows(2)
    with pytest.raises(SpecError, match="velocity"):
        policy.decoder(("velocity",))
    with pytest.raises(SpecError, match="sample, mode or random"):
        policy.decoder(()).admit(obs, "greedy", seeds)
    with pytest.raises(SpecError, match="2 rows"):
        policy.decoder(()).admit(obs, ["mode"], seeds)
