"""Every setting of Rollbus except those of plug-ins, each with its default, unit and meaning.

A default stands here and nowhere else. Plug-in sections (``env``, ``policy``, ``algorithm``) add
the fields of the plug-in's own `Config`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rollbus_wire.limits import MAX_PROCESSES

#: Largest seed: it travels as a signed 64-bit integer.
MAX_SEED = 2**63 - 1
#: The keys of `rollbus_wire.spec.ROTATIONS`.
RotationType = Literal[
    "quat_xyzw", "quat_wxyz", "rotvec", "euler_xyz_extrinsic", "euler_xyz_intrinsic", "matrix", "rot6d"
]
#: Of a layer, and threads of a process.
MAX_WIDTH, MAX_THREADS = 65_536, 1024
#: Widths of layers, one after the other.
Widths = list[Annotated[int, Field(ge=1, le=MAX_WIDTH)]]


def option(default: Any, description: str, unit: str = "", **checks: Any) -> Any:
    """A field with its meaning and unit."""
    extra: Any = {"unit": unit} if unit else None
    if default is ...:
        return Field(description=description, json_schema_extra=extra, **checks)
    return Field(default, description=description, json_schema_extra=extra, **checks)


class Section(BaseModel):
    """Base of all sections: unknown keys fail, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunConfig(Section):
    """The run as a whole."""

    name: str = option("", "Name of the run folder under runs/; empty: recipe name and time.")
    seed: int = option(1, "Seed of everything: episodes, exploration, initial weights.", ge=0, le=MAX_SEED)
    total_steps: int = option(100_000, "Environment steps to train for.", "steps", ge=1)
    total_updates: int = option(
        0, "Updates to train for, whatever the steps; 0: no limit. Needed where nothing is collected.",
        "updates", ge=0,
    )  # fmt: skip
    wall_limit_s: float = option(
        0.0, "Stop after this long, counted from the start of the learner; 0: no limit.", "s", ge=0
    )
    deterministic: bool = option(
        False, "Bit-identical repeats: lag 0, fixed batches, sorted chunks, one thread."
    )
    resume: Literal["auto", "never", "must"] = option(
        "auto",
        "Continue from the run folder's last checkpoint: if there is one, never (what is there moves into a "
        "folder earlier-1), or fail.",
    )
    start_from: str = option(
        "", "Run folder or checkpoint whose policy weights the run begins with; empty: new weights."
    )
    audit: bool = option(False, "Record every (episode, step) that is produced and applied.")

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if name and not re.fullmatch(r"\w[\w .=+-]{,99}", name):
            raise ValueError("a folder's name: letters, digits, spaces and . = + - _, up to 100 of them")
        return name


class EnvConfig(Section):
    """The environment and how its rows are arranged. The plug-in adds its own keys."""

    name: str = option("gymnasium", "Environment plug-in: a file of rollbus_envs.")
    num_envs: int = option(16, "Rows over all hubs.", "rows", ge=1)
    num_slices: int = option(2, "Slices over all hubs; at least 2 overlap simulation and inference.", ge=1)
    hubs: int = option(1, f"Hub processes, at most {MAX_PROCESSES}.", ge=1)
    placement: Literal["inline", "workers", "dial_in"] = option(
        "inline",
        "Where environments run: in the hub, in worker processes of the hub, or in processes of "
        "yours that dial in with run_env().",
    )
    workers: int = option(
        2, f"Worker processes per hub with placement: workers; of all hubs at most {MAX_PROCESSES}.", ge=1
    )
    listen: str = option("", "Address for peers that dial in; empty: ipc:// in the runtime folder.")
    step_timeout_s: float = option(
        60.0,
        "Time limit of one step or reset in a worker, which is killed and starts again (deploy.restarts), or "
        "in a peer that dialled in, whose rows wait for another. Inline it ends no step: a hub that hangs is "
        "killed after deploy.hung_after_s and starts again.",
        "s",
        gt=0,
    )
    tick_deadline_s: float = option(
        0.0, "A tick closes after this long without its late rows; 0: waits for all.", "s", ge=0
    )
    time_limit: int = option(
        0, "Truncate episodes after this many steps; 0: the environment's own limit.", "steps", ge=0
    )
    action_repeat: int = option(1, "Environment steps per decision.", "steps", ge=1)
    frame_stack: int = option(1, "Frames that one observation holds.", "frames", ge=1)
    rotations: dict[str, RotationType] = option(
        {},
        "Observation, or action -> how its rotations are stated to policies and data sets, see "
        "docs/environments.md; those of others are stated as the environment does.",
    )
    options: dict[str, Any] = option(
        {},
        "What episodes of training begin with: `name` of a source (a file of rollbus_simulator.options, or "
        "module:factory) and its settings, see docs/environments.md; empty: reset gets no options.",
    )


class ActorConfig(Section):
    """Inference."""

    count: int = option(1, f"Actor processes, at most {MAX_PROCESSES}.", ge=1)
    engine: str = option(
        "auto",
        "Inference engine: a file of rollbus_actor.engines; auto measures which one is fastest here.",
    )
    engine_options: dict[str, Any] = option({}, "Settings of the engine's own, see docs/inference.md.")
    device: str = option("auto", "auto, cpu, cuda, cuda:1, ...")
    max_batch: int = option(
        1024, "Most rows of one forward pass; fewer where larger ones prove no faster.", "rows", ge=1
    )
    batch_wait_ms: float = option(0.0, "How long a batch waits for more ticks.", "ms", ge=0)
    threads: int = option(1, "Threads of one actor.", ge=1, le=MAX_THREADS)
    decoding: Literal["auto", "whole", "continuous"] = option(
        "auto",
        "How completions share passes. whole: a batch is decided to its longest row before the next begins. "
        "continuous: rows come and leave between tokens, so that no slice waits for another one's longest. "
        "auto: continuous where completions may be long enough to gain by it.",
    )
    temporal_ensemble: float | None = option(
        None,
        "Decide at every step and execute the mean of all that was planned for it, the i-th plan with weight "
        "exp(-m i) for this m, the oldest first; needs policy.chunk. Empty: off.",
        ge=0,
    )


class RewardConfig(Section):
    """One reward beside the environment's."""

    source: str = option(
        ...,
        "module:function, the folder of a reward model (rollbus reward), or late:NAME, the column that an "
        "annotator attaches (rollbus annotate).",
        min_length=1,
    )
    weight: float = option(1.0, "What it is multiplied by.", allow_inf_nan=False)
    name: str = option(
        "", "Its mean is the metric reward_NAME; empty: the name of the function, folder or column.",
        pattern=r"^\w*$",
    )  # fmt: skip
    form: Literal["auto", "shaping", "each", "end"] = option(
        "auto",
        "How a model's figure becomes a reward: as a potential, at each decision, or where the episode ends; "
        "auto: what its kind is made for.",
    )

    @property
    def kind(self) -> Literal["function", "model", "late"]:
        """What ``source`` names."""
        if self.source.startswith("late:"):
            return "late"
        return "function" if re.fullmatch(r"[\w.]+:[\w.]+", self.source) else "model"

    @property
    def label(self) -> str:
        """The name of its metric."""
        last = re.split(r"[:/]", self.source.rstrip("/"))[-1]
        return self.name or re.sub(r"\W", "_", last)


class LearnerConfig(Section):
    """Optimisation."""

    device: str = option("auto", "auto, cpu, cuda, cuda:1, ...")
    threads: int = option(1, "Threads of the learner.", ge=1, le=MAX_THREADS)
    precision: Literal["float32", "bf16"] = option(
        "float32",
        "bf16: hidden layers compute in bfloat16; weights, outputs and losses stay float32. Worth it for "
        "images where the hardware has bfloat16 products (avx512_bf16, amx_bf16, GPUs).",
    )
    micro_batch: int = option(
        0,
        "Cut minibatches into parts of about this many samples and add up their gradients; 0: never.",
        "samples",
        ge=0,
    )
    rewards: list[RewardConfig] = option(
        [], "Rewards beside the environment's, each a mapping: source, weight, ..., see docs/algorithms.md."
    )
    late_deadline_s: float = option(
        5.0, "How long a chunk waits in its table for the rewards of sources late:NAME.", "s", gt=0
    )
    late_missing: Literal["zero", "drop"] = option(
        "zero", "What becomes of a chunk without them then: it goes on with rewards of 0, or is dropped."
    )
    gap_limit: float = option(
        0.0,
        "Stop if the mean |log-prob difference| of actor and learner at equal version exceeds this; "
        "0: only record.",
        "nats",
        ge=0,
    )


class BrokerConfig(Section):
    """Registry and store."""

    http: str = option("127.0.0.1:0", "Address of /metrics, /healthz, /readyz; port 0: any; empty: off.")
    http_token: str = option(
        "",
        "File (mode 0600) with the bearer token that HTTP asks for; needed beyond loopback. Empty: "
        "http.token of ROLLBUS_KEYS, if it is there.",
    )
    heartbeat_s: float = option(0.5, "Time between heartbeats.", "s", gt=0)
    lost_after_s: float = option(3.0, "Silence after which a member is lost.", "s", gt=0)
    slab_bytes: int = option(8 << 20, "Size of one slab file.", "bytes", ge=1 << 16)
    ticket_timeout_s: float = option(120.0, "A ticket returns after this long.", "s", gt=0)
    fsync: bool = option(False, "Keep slabs in the run folder and fsync the log: survives power loss.")


class EvalConfig(Section):
    """Evaluation during and after training."""

    every_steps: int = option(0, "Evaluate a checkpoint about this often; 0: only at the end.", "steps", ge=0)
    every_updates: int = option(0, "The same counted in updates; 0: never.", "updates", ge=0)
    episodes: int = option(20, "Episodes of one evaluation.", "episodes", ge=1)
    num_envs: int = option(20, "Rows that run at once; does not change results.", "rows", ge=1)
    seed: int = option(1, "Seed of the episode list, apart from training's.", ge=0, le=MAX_SEED)
    mode: Literal["deterministic", "stochastic"] = option(
        "deterministic", "Mode of the policy or samples of it."
    )
    start_return: float | None = option(None, "Evaluate only once the training return reaches this.")
    options: dict[str, Any] = option(
        {}, "As env.options, for episodes of evaluation, which take none of training's; empty: no options."
    )
    listen: str = option("", "With env.placement dial_in: address where environments for evaluation dial in.")


class DataSource(Section):
    """One data set that fills tables."""

    path: str = option(
        ..., "Folder of a LeRobot dataset of version 3, from where the command runs.", min_length=1
    )
    table: str = option("", "The table that it fills; empty: every one that no actor fills.")
    keys: dict[str, str] = option({}, "Observation -> feature, where it is not observation.<name>.")
    episodes: int = option(0, "Use only the first so many episodes; 0: all.", "episodes", ge=0)
    rotations: dict[str, RotationType] = option(
        {},
        "Observation, or action -> how the data set states its rotations, where it does not say so itself.",
    )
    successful_only: bool = option(False, "Use only episodes that succeeded.")
    labels: str = option("", "Folder of labels that `rollbus label` has made of it; empty: none.")
    permute_rewards: int = option(
        0, "Seed by which the rewards of its decisions change places: a sham; 0: they stay.", ge=0
    )


class DataConfig(Section):
    """Data sets on disk that the algorithm learns from, see docs/data.md."""

    sources: list[DataSource] = option([], "Data sets, each a mapping: path, table, keys, episodes, ...")


class StopConfig(Section):
    """When training ends before ``run.total_steps``."""

    eval_return: float | None = option(None, "Mean return of an evaluation that is enough.")
    episodes: int = option(0, "Episodes that evaluation must have; 0: eval.episodes.", "episodes", ge=0)


class CheckpointConfig(Section):
    """Checkpoints."""

    every_steps: int = option(
        0, "Save about this often; 0: only by time, for evaluations and at the end.", "steps", ge=0
    )
    every_updates: int = option(0, "The same counted in updates; 0: never.", "updates", ge=0)
    every_s: float = option(
        60.0, "Save at least this often, so that a killed learner loses no more; 0: never by time.", "s", ge=0
    )
    keep: int = option(3, "Checkpoints kept besides best and last.", ge=1)


class DeployConfig(Section):
    """How processes are laid out."""

    layout: Literal["auto", "stated"] = option(
        "auto",
        "auto: `rollbus train` chooses deploy.processes, env.hubs, actor.count and env.num_slices for this "
        "machine, if none of them is set; stated: their defaults hold.",
    )
    processes: list[str] = option(
        ["broker", "hub", "actor", "learner"],
        "One process per entry; 'hub+actor' puts both into one. An evaluator that is not named gets a "
        "process of its own once there is a checkpoint to evaluate.",
    )
    backend: str = option("auto", "Accelerator backend: a file of rollbus_accel.backends, or auto.")
    restarts: int = option(5, "Restarts per process, and per worker of a hub, within ten minutes.", ge=0)
    min_healthy: int = option(
        1,
        "A process that has used up its restarts is left out while this many others with its services run; "
        "else the run ends.",
        ge=1,
    )
    hung_after_s: float = option(
        60.0,
        "A process that lives but has been lost for this long is killed and starts again; 0: never.",
        "s",
        ge=0,
    )
    start_timeout_s: float = option(60.0, "Time limit from start to ready.", "s", gt=0)
    stop_timeout_s: float = option(5.0, "Time limit from stop to exit.", "s", gt=0)
