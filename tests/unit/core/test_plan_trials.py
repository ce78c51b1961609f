"""What a prediction leans on: a trial of the layout itself, of its kind, or none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rollbus_core.plan.layouts import Host, Layout, processes
from rollbus_core.plan.model import Prediction
from rollbus_core.plan.trials import Tried, basis

FUSED, APART = ("broker", "hub+actor", "learner"), ("broker", "hub", "actor", "learner")


def layout(
    entries: tuple[str, ...], slices: tuple[int, ...] = (8, 8), cores: int = 2, hubs: int = 1
) -> Layout:
    return Layout((Host(cores, processes(entries, hubs, 1), (slices,) * hubs),))


def tried(of: Layout, *rates: float, said: float) -> Tried:
    (host,) = of.hosts
    return Tried(
        num_cores=host.num_cores, processes=tuple(p.name for p in host.processes), slices=host.slices,
        steps_per_s=rates, said_per_s=said, seconds=5.0, episode_steps=25.0,
    )  # fmt: skip


TRIALS = (
    tried(layout(APART), 6000.0, 8000.0, said=10_000.0),
    tried(layout(FUSED), 9900.0, said=9000.0),
)


def test_a_layout_that_was_tried_has_the_mean_of_its_runs() -> None:
    """(6,000 + 8,000) / 2 over 10,000."""
    factor, kind, text = basis(layout(APART), TRIALS)
    assert factor == pytest.approx(0.7) and kind == "measured trial"
    assert text == (
        "measured trial: 6,000 and 8,000 steps/s in 5.0 s with episodes of 25 steps; of the same the model "
        "alone says 10,000 (x 0.70)"
    )


@pytest.mark.parametrize(
    ("other", "factor"),
    [
        (layout(APART, slices=(16,)), 0.7),
        (layout(APART, hubs=2), 0.7),
        (layout(FUSED, slices=(4,) * 4), 1.1),
        # One hub shares its process with the actor, one does not: as what is fused.
        (layout(FUSED, hubs=2), 1.1),
    ],
)
def test_others_of_its_kind_are_extrapolated(other: Layout, factor: float) -> None:
    found = basis(other, TRIALS)
    assert found.factor == pytest.approx(factor)
    assert found.text.startswith("extrapolated from a trial of broker-0, hub")
    assert "with slices of 8 8 rows" in found.text


@pytest.mark.parametrize(
    "other",
    [
        layout(APART, cores=16),
        Layout((*layout(APART).hosts, *layout(APART).hosts)),
        layout(("broker+learner", "hub", "actor"), cores=1),
    ],
)
def test_other_machines_have_the_model_alone(other: Layout) -> None:
    found = basis(other, TRIALS)
    assert found.factor == 1.0 and found.text.startswith("the model alone")


def test_a_trial_beside_other_programs_says_so() -> None:
    disturbed = TRIALS[0].model_copy(update={"others_cores": 0.84})
    assert basis(layout(APART), [disturbed]).text.endswith(
        "(x 0.70); other programs used 0.8 cores meanwhile, so plan again when they do not"
    )


def test_without_trials_of_a_kind_nothing_is_said_of_it() -> None:
    assert basis(layout(FUSED), TRIALS[:1]).factor == 1.0
    assert basis(layout(FUSED), ()).factor == 1.0


def test_a_corrected_prediction_does_the_same_work_per_step() -> None:
    said = Prediction(
        steps_per_s=1000.0, updates_per_s=2.0, busy={"hub": 0.8, "learner": 0.1}, bottleneck="hub",
        cores_used=(1.6,), process_cores={"hub-0": 0.8, "i/o": 0.2}, num_events=7,
    )  # fmt: skip
    slower, faster = said.times(0.5), said.times(1.5)
    assert slower.steps_per_s == 500.0 and slower.updates_per_s == 1.0
    assert slower.busy == {"hub": 0.4, "learner": 0.05} and slower.cores_used == (0.8,)
    assert slower.process_cores == {"hub-0": 0.4, "i/o": 0.1}
    assert slower.cores_used[0] / slower.steps_per_s == said.cores_used[0] / said.steps_per_s
    assert faster.busy["hub"] == 1.0


@pytest.mark.parametrize("wrong", [{"steps_per_s": ()}, {"said_per_s": 0.0}, {"episode_steps": 0.0}])
def test_trials_without_a_rate_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Tried.model_validate(TRIALS[0].model_dump() | wrong)
