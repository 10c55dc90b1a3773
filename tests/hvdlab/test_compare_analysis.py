"""What measurements allow to be said, on made-up epochs."""

from pathlib import Path

import pytest

from hvdlab.compare import Comparison, report
from hvdlab.compare.analysis import Run, conclusion, speedup, unclear
from hvdlab.compare.job import Job

SCRIPT = Path("train.py")


def made_up(np, rates, others=0.0, reference=False, accuracy=0.9):
    """A run with one repeat; the first rate is the warm-up's."""
    epochs = [
        {
            "epoch": number,
            "seconds": 60_000 / rate,
            "images": 60_000,
            "images_per_second": rate,
            "loss": 0.3,
            "accuracy": accuracy,
            "is_warmup": number == 1,
            "batch_size": 64,
            "learning_rate": 0.02 * np,
            "device": "cpu",
            "others_cpu": others,
        }
        for number, rate in enumerate(rates, 1)
    ]
    return Run(Job(SCRIPT, np, 1, len(rates)), [epochs], reference)


def test_warmup_is_left_out_of_the_speedup():
    ratio = speedup(made_up(2, [10, 190, 200, 210]), made_up(1, [5000, 100, 100, 100]))
    assert (ratio.middle, ratio.low, ratio.high) == (2.0, 1.9, 2.1)
    assert ratio.text() == "2.00 (1.90 to 2.10)"


def test_extremes_stand_against_extremes():
    ratio = speedup(made_up(2, [1, 180, 220]), made_up(1, [1, 90, 110]))
    assert ratio.low == pytest.approx(180 / 110) and ratio.high == pytest.approx(220 / 90)


@pytest.mark.parametrize(
    ("rates", "base", "reason"),
    [
        ([1, 180, 190], [1, 100, 104], None),
        ([1, 70, 72], [1, 100, 104], None),
        ([1, 95, 130], [1, 100, 104], "the spread is larger than the difference"),
        ([80, 130], [1, 100, 104], "the spread is larger than the difference"),
        ([120, 130], [1, 100, 104], None),
        ([300], [1, 100, 104], "one epoch tells nothing of the spread"),
    ],
)
def test_no_conclusion_where_the_noise_is_larger(rates, base, reason):
    run, baseline = made_up(2, rates), made_up(1, base)
    assert unclear(run, baseline) == reason
    said = conclusion(run, baseline)
    assert ("no conclusion" in said) == (reason is not None)
    assert ("clearly slower" in said) == (reason is None and rates[-1] < 100)


def test_no_conclusion_on_a_busy_machine():
    run = made_up(2, [1, 180, 190], others=0.4)
    assert "other programs took 40 %" in conclusion(run, made_up(1, [1, 100, 104]))


def test_more_repeats_narrow_the_spread():
    run = made_up(2, [1, 100, 200])
    wide = run.rate
    run.repeats += made_up(2, [1, 150, 150]).repeats + made_up(2, [1, 150, 150]).repeats
    assert (wide.low, wide.high) == (100, 200)
    assert (run.rate.low, run.rate.middle, run.rate.high) == (150, 150, 150)


def test_figures_are_stated_with_batch_and_learning_rate():
    runs = [made_up(1, [90, 100, 101]), made_up(1, [9, 150, 151], reference=True)]
    comparison = Comparison(SCRIPT, [1, 2], [*runs, made_up(2, [90, 180, 182], accuracy=0.88)])
    text = "\n".join(report.notes(comparison))
    assert "total batch of 64 and 938 steps an epoch; learning rate 0.02" in text
    assert "total batch of 128 and 469 steps an epoch; learning rate 0.04" in text
    assert "test accuracy 88.00 %" in text
    numbers = report.as_json(comparison)["runs"]
    assert [run["is_baseline"] for run in numbers] == [True, False, False]
    assert numbers[2]["efficiency"] == pytest.approx(181 / 100.5 / 2)


def test_figure_has_titles_units_and_legends():
    runs = [made_up(1, [90, 100, 101]), made_up(2, [90, 180, 182])]
    axes = Comparison(SCRIPT, [1, 2], runs).figure().axes
    assert [one.get_title() for one in axes] == [
        "Training speed and its spread",
        "Accuracy on the test images",
    ]
    assert axes[0].get_ylabel() == "images per second"
    assert axes[1].get_ylabel() == "test accuracy (%)"
    assert all(one.get_legend().get_texts() for one in axes)
