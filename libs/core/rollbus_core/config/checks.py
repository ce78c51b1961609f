"""Settings that do not fit together, found before a process starts."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any

from rollbus_core import extras
from rollbus_core.config import plugins, sizes
from rollbus_core.config.feeds import Origins, located
from rollbus_core.config.nearest import hint
from rollbus_core.config.recipe import Recipe
from rollbus_core.config.source import DEFAULT
from rollbus_core.key_folder import configured
from rollbus_wire import lookup
from rollbus_wire.errors import BindRefused, RollbusError
from rollbus_wire.sockets import check_bind

#: The services of a run; ``deploy.processes`` lays out each exactly once.
SERVICES = ("broker", "hub", "actor", "learner")
#: May be laid out too; else it gets a process of its own once there is something to evaluate.
OPTIONAL_SERVICES = ("evaluator", "source")
#: What a policy can offer, for people.
CAPABILITIES = {
    "log_prob": "log-probabilities of actions",
    "entropy": "entropy",
    "value": "a value function",
    "value_error": "an error of the value that it can limit",
    "sample": "a reparameterised sample",
    "token_log_prob": "log-probabilities of tokens",
    "chain_log_prob": "log-probabilities of denoising steps",
    "velocity": "a velocity field",
    "recurrent": "a recurrent state",
    "cloning_loss": "a loss of its own on demonstrated actions",
    "deterministic": "a deterministic action with gradient",
    "q_values": "a value of every discrete action",
    "steering": "a network that chooses its initial noise",
    "refinement": "a network that changes what it decides",
}
#: Key -> the package whose files it names; "auto" lets the program choose.
_FILES = {"actor.engine": "rollbus_actor.engines", "deploy.backend": "rollbus_accel.backends"}


def problems(recipe: Recipe, origins: Origins) -> list[str]:
    """One line per problem."""
    found = [
        *sizes.numbers(recipe),
        *_plugins(recipe),
        *_capabilities(recipe),
        *_beginning(recipe),
        *_arrangement(recipe),
        *sizes.rows(recipe),
        *sizes.counts(recipe),
        *_determinism(recipe),
        *_evaluation(recipe),
        *_rewards(recipe),
        *_addresses(recipe),
        *_processes(recipe),
        *_files(recipe),
        *_engine(recipe),
        *_devices(recipe),
        *_options(recipe),
        *_kernels(),
        *_without_effect(recipe, origins),
    ]
    return [f"{located(key, origins)}: {text}" for key, text in found]


def missing_packages(recipe: Recipe, origins: Origins) -> list[str]:
    """One line per plug-in that needs a package this interpreter lacks, with the way to get it."""
    lines = []
    for section in plugins.PLUGIN_PACKAGES:
        if section == "env" and recipe.env.placement == "dial_in":
            continue
        config = getattr(recipe, section)
        missing = plugins.missing_packages(section, config)
        if missing:
            where = located(f"{section}.name", origins)
            lines.append(f"{where}: {section} {config.name!r} needs {extras.not_there(missing)}")
    for key, used, what, names in (
        ("env.rotations", recipe.env.rotations, "rotations", extras.ROTATIONS),
        ("data.sources", recipe.data.sources, "data sets", extras.DATASETS),
    ):
        if used and (lacking := extras.missing(names)):
            where = located(key, origins)
            needed = extras.not_there({name: extras.requirement(name) for name in lacking})
            lines.append(f"{where}: {what} need {needed}")
    return lines


def _plugins(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What an environment that is made here says of its settings."""
    if recipe.env.placement != "dial_in":
        module = plugins.module_of("env", recipe.env.name)
        said = getattr(module, "problem", None)
        if said is not None and (text := said(recipe.env)):
            yield f"env.{getattr(module, 'checked', 'name')}", text


def _capabilities(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for text in misfits(recipe.policy, recipe.algorithm):
        yield "policy.name", text


def misfits(policy: Any, algorithm: Any) -> Iterator[str]:
    """Why a policy with these settings cannot be trained by an algorithm with these."""
    offers, requires, lacks = policy.offers, algorithm.requires, policy.lacks()
    for name in sorted(offers & set(algorithm.excludes)):
        yield f"algorithm {algorithm.name!r} {algorithm.excludes[name]}"
    if algorithm.needs_label and policy.condition != "label":
        told = "needs a policy that is told the label; set policy.condition: label"
        yield f"algorithm {algorithm.name!r} {told}"
    for name in sorted((requires & offers | algorithm.requires_by_settings) & set(lacks)):
        yield f"algorithm {algorithm.name!r} needs {CAPABILITIES.get(name, name)} ({name}); {lacks[name]}"
    missing = sorted(requires - offers)
    either = algorithm.requires_one_of
    if not missing and either and not either & (offers - set(lacks)):
        lacking = sorted(either & offers)
        if lacking:
            wanted = " or ".join(f"{CAPABILITIES.get(name, name)} ({name})" for name in sorted(either))
            yield f"algorithm {algorithm.name!r} needs {wanted}; {lacks[lacking[0]]}"
            return
        missing = [sorted(either)[0]]
    if missing:
        wanted = " and ".join(f"{CAPABILITIES.get(name, name)} ({name})" for name in missing)
        yield (
            f"algorithm {algorithm.name!r} needs {wanted}; "
            f"policy {policy.name!r} offers {', '.join(sorted(offers)) or 'nothing'}"
        )


def _beginning(recipe: Recipe) -> Iterator[tuple[str, str]]:
    wanted = getattr(recipe.algorithm, "begins_with", "")
    if wanted and not recipe.run.start_from:
        yield (
            "run.start_from",
            f"is empty, but {recipe.algorithm.name!r} leaves weights as they are, so new ones would stay "
            f"untrained; set it to {wanted} (a run folder or checkpoint)",
        )


def _arrangement(recipe: Recipe) -> Iterator[tuple[str, str]]:
    env = recipe.env
    num_executed = getattr(recipe.policy, "num_executed", 1)
    if env.action_repeat > 1 and num_executed > 1:
        yield (
            "env.action_repeat",
            f"{env.action_repeat} steps per action, but the policy decides {num_executed} actions at once; "
            "set env.action_repeat=1 or policy.execute=1",
        )
    if env.num_envs % env.num_slices:
        yield (
            "env.num_envs",
            f"{env.num_envs} rows cannot be divided into {env.num_slices} equal slices; "
            f"make env.num_envs a multiple of env.num_slices = {env.num_slices}",
        )
    if env.num_slices % env.hubs:
        yield (
            "env.num_slices",
            f"{env.num_slices} slices cannot be divided over {env.hubs} hubs; "
            f"make env.num_slices a multiple of env.hubs = {env.hubs}",
        )
    broker = recipe.broker
    if broker.lost_after_s < 2 * broker.heartbeat_s:
        yield (
            "broker.lost_after_s",
            f"{broker.lost_after_s} s is less than two heartbeats (broker.heartbeat_s = "
            f"{broker.heartbeat_s}); one late heartbeat would lose a member",
        )


def _determinism(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if not recipe.run.deterministic:
        return
    why = "run.deterministic: true needs"
    if getattr(recipe.algorithm, "max_lag", 0):
        lag = recipe.algorithm.max_lag
        yield "algorithm.max_lag", f"is {lag}, but {why} lag 0; set algorithm.max_lag=0"
    for section in ("actor", "learner"):
        threads = getattr(recipe, section).threads
        if threads > 1:
            yield f"{section}.threads", f"is {threads}, but {why} one thread; set {section}.threads=1"
    if recipe.actor.decoding == "continuous":
        yield (
            "actor.decoding",
            f"is continuous, but {why} rows whose bits do not depend on who else is decided; "
            "set actor.decoding=whole",
        )
    if recipe.env.tick_deadline_s:
        yield (
            "env.tick_deadline_s",
            f"is {recipe.env.tick_deadline_s}, but {why} ticks that wait for all rows; "
            "set env.tick_deadline_s=0",
        )


def _rewards(recipe: Recipe) -> Iterator[tuple[str, str]]:
    labels = [reward.label for reward in recipe.learner.rewards]
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        yield "learner.rewards", f"has {label!r} more than once; give each a name of its own"
    late = [reward for reward in recipe.learner.rewards if reward.kind == "late"]
    for reward in late:
        if reward.name or not re.fullmatch(r"late:\w+", reward.source):
            yield (
                "learner.rewards",
                f"source {reward.source!r}: late:NAME, which is its name, in letters and digits",
            )
    if late and recipe.run.deterministic:
        yield (
            "learner.rewards",
            f"{late[0].source} comes when it comes; run.deterministic: true cannot have it",
        )


def _evaluation(recipe: Recipe) -> Iterator[tuple[str, str]]:
    stop, evaluation = recipe.stop_when, recipe.eval
    if stop.eval_return is not None and not (evaluation.every_steps or evaluation.every_updates):
        yield (
            "stop_when.eval_return",
            "needs evaluations during training, but eval.every_steps is 0; set eval.every_steps",
        )
    if stop.episodes > evaluation.episodes:
        yield (
            "stop_when.episodes",
            f"asks for {stop.episodes} episodes, but an evaluation has eval.episodes = {evaluation.episodes}",
        )


def _addresses(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.env.placement != "dial_in":
        return
    given = {"env.listen": recipe.env.listen, "eval.listen": recipe.eval.listen}
    for key, address in given.items():
        try:
            check_bind(address or "ipc:///", keyed=configured() is not None)
        except BindRefused as error:
            yield key, str(error)
    if not recipe.eval.listen:
        yield (
            "eval.listen",
            "is empty, but env.placement is dial_in: environments for evaluation dial in there; set it",
        )
    elif recipe.env.listen == recipe.eval.listen:
        yield "eval.listen", f"is {recipe.eval.listen}, as env.listen is; give each an address of its own"


def _processes(recipe: Recipe) -> Iterator[tuple[str, str]]:
    named = [service.strip() for entry in recipe.deploy.processes for service in entry.split("+")]
    known = SERVICES + OPTIONAL_SERVICES
    for service in dict.fromkeys(named):
        if service not in known:
            yield (
                "deploy.processes",
                f"unknown service {service!r}; services are {', '.join(known)}{hint(service, known)}",
            )
        elif named.count(service) > 1:
            yield "deploy.processes", f"names {service!r} {named.count(service)} times; name each once"
    missing = [service for service in SERVICES if service not in named]
    if missing:
        yield "deploy.processes", f"lacks {', '.join(missing)}; name each of {', '.join(SERVICES)} once"


def _files(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for key, package in _FILES.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe, section), name)
        if value == "auto" or "." in value or importlib.util.find_spec(package.partition(".")[0]) is None:
            continue
        known = lookup.names(package)
        if known and value not in known:
            yield key, f"{value!r} is not one of: {', '.join(known)}{hint(value, known)}"


def _engine(recipe: Recipe) -> Iterator[tuple[str, str]]:
    name, options = recipe.actor.engine, recipe.actor.engine_options
    if importlib.util.find_spec("rollbus_actor") is None or (name == "auto" and not options):
        return
    if "." not in name and name not in lookup.names("rollbus_actor.engines"):
        return  # `_files` says so
    try:
        importlib.import_module("rollbus_actor.engines.base").check_engine(name, options)
    except RollbusError as error:
        yield ("actor.engine_options" if options else "actor.engine"), str(error)


def _devices(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Kinds of devices; whether there is one of the kind is known where torch is."""
    if importlib.util.find_spec("rollbus_accel") is None:
        return
    backends = importlib.import_module("rollbus_accel.backends.base").backends()
    chosen = [each for each in backends if recipe.deploy.backend in ("auto", each.name)]
    kinds = sorted({"cpu", *(each.device for each in chosen or backends)})
    for section in ("actor", "learner"):
        device = getattr(recipe, section).device
        kind, colon, index = device.partition(":")
        if device == "auto" or (kind in kinds and index.isdecimal() == bool(colon)):
            continue
        named = ", ".join(each if each == "cpu" else f"{each}:N" for each in kinds)
        by = "" if recipe.deploy.backend == "auto" else f" with deploy.backend {recipe.deploy.backend}"
        yield f"{section}.device", f"is {device!r}; give auto, {named}{by}{hint(kind, kinds)}"


def _options(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What episodes begin with."""
    given = {"env.options": recipe.env.options, "eval.options": recipe.eval.options}
    if not any(given.values()) or importlib.util.find_spec("rollbus_simulator") is None:
        return
    sources = importlib.import_module("rollbus_simulator.options.base")
    exact = {"env.options": recipe.run.deterministic, "eval.options": True}
    for key, settings in given.items():
        try:
            (sources.fixed_by_seed if exact[key] else sources.make)(settings, key)
        except RollbusError as error:
            yield key, str(error).removeprefix(f"{key}: ")


def _kernels() -> Iterator[tuple[str, str]]:
    asked = os.environ.get("ROLLBUS_KERNELS", "auto")
    if asked == "auto" or importlib.util.find_spec("rollbus_accel") is None:
        return
    known = ("auto", *importlib.import_module("rollbus_accel.backends.base").FLAVOURS)
    if asked not in known:
        yield "ROLLBUS_KERNELS", f"is {asked!r} in the environment; one of: {', '.join(known)}"


def _is_default(recipe: Recipe, key: str) -> bool:
    """Whether ``key`` was set to what it is anyway."""
    section, _, name = key.partition(".")
    settings = getattr(recipe, section)
    field = type(settings).model_fields[name]
    return bool(getattr(settings, name) == field.get_default(call_default_factory=True))


def _without_effect(recipe: Recipe, origins: Origins) -> Iterator[tuple[str, str]]:
    env, evaluation, stop = recipe.env, recipe.eval, recipe.stop_when
    placed = f"env.placement is {env.placement}"
    has_late = any(reward.kind == "late" for reward in recipe.learner.rewards)
    rules = (
        ("env.workers", env.placement == "workers", f"{placed}; set env.placement: workers"),
        ("env.listen", env.placement == "dial_in", f"{placed}; set env.placement: dial_in"),
        ("eval.listen", env.placement == "dial_in", f"{placed}; set env.placement: dial_in"),
        (
            "eval.start_return",
            evaluation.every_steps + evaluation.every_updates > 0,
            "eval.every_steps is 0; set eval.every_steps",
        ),
        ("stop_when.episodes", stop.eval_return is not None, "stop_when.eval_return is not set; set it"),
        *(
            (f"learner.late_{key}", has_late, "no source of learner.rewards is late:NAME; add one")
            for key in ("deadline_s", "missing")
        ),
    )
    for key, has_effect, reason in rules:
        if origins.get(key, DEFAULT) != DEFAULT and not has_effect and not _is_default(recipe, key):
            yield key, f"has no effect, because {reason} or remove this key"
