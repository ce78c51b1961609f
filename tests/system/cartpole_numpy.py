"""CartPole-v1 in plain numpy under the wire's contract, for interpreters that have nothing else.

Barto, Sutton, Anderson 1983; constants and limits as in Gymnasium's CartPole-v1. Runs on Python 3.8:
``python cartpole_numpy.py ADDRESS NUM_ROWS`` serves it to the hub at ADDRESS.
"""

import sys

import numpy as np

from rollbus_wire.env import Env, StepResult
from rollbus_wire.peer import run_env
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * np.pi / 360


class CartPole(Env):
    """``state`` is [num_rows, 4]: position, speed, angle, angular speed."""

    spec = EnvSpec(
        name="cartpole-numpy",
        observation={"obs": ArraySpec("float32", (4,))},
        action=ActionSpec("discrete", num=[2]),
        time_limit=500,
    )

    def __init__(self, num_rows):
        self.num_rows = num_rows
        self.state = np.zeros((num_rows, 4))

    def reset(self, rows, seeds, options):
        for row, seed in zip(rows.tolist(), seeds.tolist()):
            self.state[row] = np.random.RandomState(seed).uniform(-0.05, 0.05, 4)
        return self.observe(rows)

    def step(self, rows, actions, observe):
        x, speed, angle, turn = self.state[rows].T
        force = np.where(actions == 1, FORCE, -FORCE)
        cos, sin, mass = np.cos(angle), np.sin(angle), CART + POLE
        push = (force + POLE * HALF_LENGTH * turn**2 * sin) / mass
        bend = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE * cos**2 / mass))
        pull = push - POLE * HALF_LENGTH * bend * cos / mass
        new = (x + TAU * speed, speed + TAU * pull, angle + TAU * turn, turn + TAU * bend)
        self.state[rows] = np.stack(new, 1)
        fallen = (np.abs(new[0]) > X_LIMIT) | (np.abs(new[2]) > ANGLE_LIMIT)
        obs = self.observe(rows) if observe else None
        return StepResult(obs, np.ones(len(rows), np.float32), fallen, np.zeros(len(rows), np.bool_))

    def observe(self, rows):
        return {"obs": self.state[rows].astype(np.float32)}

    def close(self):
        pass


def make(num_rows):
    return CartPole(num_rows)


if __name__ == "__main__":
    run_env(CartPole(int(sys.argv[2])), sys.argv[1], name="python %d.%d" % sys.version_info[:2])
