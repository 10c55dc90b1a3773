"""The simulator: properties of its cost models, the published figures, and the fit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hvdlab import simulate
from hvdlab.cli import app
from hvdlab.simulate import plots
from hvdlab.simulate.step import slowest

workers = st.integers(1, 30_000)
sizes = st.floats(0, 1e10)
links = st.builds(simulate.Link, st.floats(0, 1e-3), st.floats(1e6, 1e12))
clusters = st.builds(simulate.Cluster, st.integers(1, 16), links, links)
algorithms = st.sampled_from(sorted(simulate.ALGORITHMS))


@given(algorithms, sizes, sizes, workers, clusters)
def test_more_bytes_never_cost_less(algorithm, n, more, w, cluster):
    low = simulate.allreduce(algorithm, n, w, cluster)
    assert 0 <= low <= simulate.allreduce(algorithm, n + more, w, cluster) * (1 + 1e-9)


@given(algorithms, sizes, clusters)
def test_one_worker_communicates_with_nobody(algorithm, n, cluster):
    assert simulate.allreduce(algorithm, n, 1, cluster) == 0


@given(algorithms, sizes, links, st.integers(1, 5000), st.integers(1, 5000))
def test_more_servers_never_cost_less(algorithm, n, link, w, more):
    cluster = simulate.Cluster(1, link, link)
    low = simulate.allreduce(algorithm, n, w, cluster)
    assert low <= simulate.allreduce(algorithm, n, w + more, cluster) * (1 + 1e-9)


@given(sizes, st.integers(2, 30_000), links)
def test_a_ring_sends_its_share_of_the_bytes_whatever_the_number(n, w, link):
    no_latency = simulate.Link(0.0, link.bandwidth)
    cluster = simulate.Cluster(1, no_latency, no_latency)
    sent = simulate.ring(n, w, cluster) * link.bandwidth
    assert sent == pytest.approx(2 * (w - 1) / w * n, rel=1e-9, abs=1e-6)
    assert sent <= 2 * n * (1 + 1e-9)


@given(st.integers(2, 30_000), links)
def test_for_nothing_to_send_only_latency_counts(w, link):
    cluster = simulate.Cluster(1, link, link)
    depth = math.ceil(math.log2(w))
    assert simulate.ring(0, w, cluster) == pytest.approx(2 * (w - 1) * link.latency)
    assert simulate.tree(0, w, cluster) == pytest.approx(2 * depth * link.latency)
    assert simulate.parameter_server(0, w, cluster) == pytest.approx(2 * link.latency)


@given(st.integers(2, 30_000), links)
def test_for_huge_tensors_a_tree_nears_twice_the_tensor(w, link):
    n = 1e9 * max(link.latency, 1e-9) * link.bandwidth * math.log2(w)
    time = simulate.tree(n, w, simulate.Cluster(1, link, link)) * link.bandwidth
    assert time == pytest.approx(2 * n, rel=0.01)


@given(st.floats(1, 1e10), st.integers(2, 10_000), links)
def test_one_parameter_server_carries_everything_of_everybody(n, w, link):
    no_latency = simulate.Link(0.0, link.bandwidth)
    cluster = simulate.Cluster(1, no_latency, no_latency)
    ratio = simulate.parameter_server(n, w, cluster) / simulate.ring(n, w, cluster)
    assert ratio == pytest.approx(w * w / (w - 1))
    as_many = simulate.parameter_server(n, w, cluster, servers=w)
    assert as_many == pytest.approx(simulate.ring(n, w, cluster) * w / (w - 1))


@given(sizes, st.integers(2, 5_000), links)
def test_without_anything_inside_a_server_the_hierarchy_is_a_ring(n, w, link):
    cluster = simulate.Cluster(1, link, link)
    expected = pytest.approx(simulate.ring(n, w, cluster))
    assert simulate.hierarchical(n, w, cluster) == expected


@given(st.sampled_from(list(simulate.NETWORKS.values())), workers, clusters, st.floats(0, 0.2))
@settings(max_examples=30)
def test_a_step_is_never_faster_than_alone_and_overlap_never_hurts_it(network, w, cluster, jitter):
    beside = simulate.step(network, w, cluster, jitter=jitter)
    after = simulate.step(network, w, cluster, jitter=jitter, overlap=False, fusion_bytes=1e12)
    longest = beside.compute[-1].end
    assert 0 < beside.efficiency <= 1 + 1e-9
    assert beside.seconds >= longest - 1e-9
    assert beside.exposed == pytest.approx(beside.seconds - longest)
    total = sum(span.bytes for span in beside.communication)
    assert total == pytest.approx(network.bytes if w > 1 else 0)
    assert after.seconds >= longest + simulate.ring(network.bytes, w, cluster) - 1e-9
    for first, second in zip(beside.communication, beside.communication[1:], strict=False):
        assert second.start >= first.end - 1e-12


def test_fusion_pays_where_messages_are_many_and_compression_where_bytes_are():
    cluster = simulate.PUBLISHED_CLUSTER

    def waits(network, **options):
        return simulate.step(network, 512, cluster, **options).exposed

    fused = waits(simulate.RESNET101)
    assert waits(simulate.RESNET101, fusion_bytes=0) > 2 * fused
    assert waits(simulate.VGG16, compression=2) < 0.6 * waits(simulate.VGG16)


def test_the_slowest_of_many_is_slower_than_the_slowest_of_few():
    draws = np.random.default_rng(1).normal(1, 0.03, size=(4000, 64))
    assert slowest(64, 0.03) == pytest.approx(draws.max(axis=1).mean() - 1, rel=0.02)
    assert slowest(1, 0.03) == 0 < slowest(2, 0.03) < slowest(512, 0.03)


@pytest.mark.parametrize(
    "figure", simulate.PUBLISHED, ids=lambda f: f"{f.network.name}-{f.workers}"
)
def test_published_efficiencies_come_out_within_five_points(figure):
    assert abs(simulate.reproduce(figure).efficiency - figure.efficiency) < 0.05


def test_the_networks_weigh_what_the_literature_says():
    # VGG: arXiv:1409.1556, table 2 (138 million). ResNet-101: 7.6e9 multiplications in table 1 of
    # arXiv:1512.03385. Inception V3: "25 million" at most in arXiv:1512.00567.
    assert simulate.VGG16.parameters == 138_357_544
    assert sum(layer.work for layer in simulate.RESNET101.layers) == pytest.approx(7.6e9, rel=0.01)
    assert simulate.INCEPTION_V3.parameters < 25e6


def test_the_command_prints_a_table_and_refuses_nonsense():
    cli = CliRunner()
    told = cli.invoke(app, ["simulate", "--workers", "1,27000", "--cluster", "modern"])
    assert told.exit_code == 0, told.output
    assert "27,000" in told.output and "100.0 %" in told.output
    for wrong, says in ((["--network", "VGG"], "VGG-16"), (["--workers", "2,x"], "1,8,512")):
        told = cli.invoke(app, ["simulate", *wrong])
        assert told.exit_code == 1 and says in told.output


@pytest.mark.slow
def test_the_networks_weigh_what_keras_counts():
    import keras

    for name, network in (
        ("InceptionV3", simulate.INCEPTION_V3),
        ("ResNet101", simulate.RESNET101),
    ):
        model = getattr(keras.applications, name)(weights=None)
        counted = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        # Keras's ResNet has biases before its batch norms, which the paper's has not.
        assert network.parameters == pytest.approx(counted, rel=0.002)


def test_tens_of_thousands_of_workers_are_no_more_work_than_two():
    many = simulate.reproduce(simulate.PUBLISHED[0], workers=27_000)
    assert 0 < many.efficiency < simulate.reproduce(simulate.PUBLISHED[0]).efficiency
    assert many.speedup == pytest.approx(27_000 * many.efficiency)


TRUTH = {"G": 100.0, "bytes": 3.0, "messages": 0.02}


def times(counts, names, noise=0.0, seed=0):
    w = np.array(counts, dtype=float)
    exact = TRUTH["G"] / w
    exact = exact + ("bytes" in names) * TRUTH["bytes"] * 2 * (w - 1) / w
    exact = exact + ("messages" in names) * TRUTH["messages"] * 2 * (w - 1)
    return exact * (1 + noise * np.random.default_rng(seed).normal(size=len(w)))


@pytest.mark.parametrize("names", [("bytes",), ("messages",), ("bytes", "messages")])
def test_the_fit_finds_exact_parameters(names):
    counts = [1, 2, 4, 8, 16]
    found = simulate.fit(counts, times(counts, names), names)
    assert found.values == pytest.approx([TRUTH["G"], *(TRUTH[name] for name in names)])
    assert found.predict(1000)[0] == pytest.approx(times([1000], names)[0])


def test_no_cost_is_negative():
    counts, seconds = [1, 1, 2, 2, 4], [1.0, 1.02, 0.48, 0.47, 0.3]
    found = simulate.fit(counts, seconds, ("bytes", "messages"))
    assert min(found.values) == 0 and found.values[0] > 0.9
    faster_than_ideal = simulate.fit([1, 1, 2, 2], [1.0, 1.02, 0.48, 0.47])
    assert faster_than_ideal.values[1] == 0
    assert faster_than_ideal.efficiency(1024) == pytest.approx(1.0)
    assert faster_than_ideal.margin(1024) > 0


def test_the_range_of_the_fit_holds_what_it_promises():
    """95 of 100 ranges should hold the truth; at least 88 must, by more than three sigma."""
    counts = [1, 1, 1, 2, 2, 2, 4, 4, 4]
    w = np.array(counts)
    exact = times(counts, ("bytes",))
    held = 0
    for seed in range(200):
        noisy = exact + np.random.default_rng(seed).normal(0, 1.0, size=len(w))
        found = simulate.fit(counts, noisy)
        held += abs(found.predict(64)[0] - times([64], ("bytes",))[0]) <= found.margin(64)[0]
    assert 176 <= held <= 200


def test_without_repeats_the_error_is_unknown():
    found = simulate.fit([1, 2], [10.0, 6.0])
    assert np.isinf(found.margin(4)).all()
    assert "error unknown" in str(found)
    assert found.efficiency(2)[0] == pytest.approx(10 / 12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1, 1], [1.0, 1.1]), "can't tell"),
        (([1, 2], [1.0, 0.6], ["bytes", "messages"]), "can't tell"),
        (([1, 2], [1.0]), "2 numbers of workers, but 1 times"),
        (([1, 2], [1.0, math.nan]), "must be positive"),
        (([1, 2], [1.0, 0.6], ["byts"]), "bytes, messages"),
    ],
)
def test_a_fit_that_cannot_be_says_why(arguments, says):
    with pytest.raises(ValueError, match=says):
        simulate.fit(*arguments)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: simulate.Link(-1, 1), "latency"),
        (lambda: simulate.Cluster(0, *[simulate.Link(0, 1)] * 2), "at least one worker"),
        (lambda: simulate.ring(1, 0, simulate.PUBLISHED_CLUSTER), "at least one worker"),
        (lambda: simulate.allreduce("rign", 1, 1, simulate.PUBLISHED_CLUSTER), "ring, tree"),
        (lambda: simulate.step(simulate.VGG16, 2, simulate.PUBLISHED_CLUSTER, 0), "positive"),
        (
            lambda: simulate.parameter_server(1, 2, simulate.PUBLISHED_CLUSTER, servers=0),
            "at least one parameter server",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_the_pictures_have_titles_units_and_legends():
    counts = [1, 2, 2, 4]
    seconds = [10.0, 6.0, 6.1, 4.0]
    steps = [simulate.reproduce(simulate.PUBLISHED[0], workers=w) for w in (1, 8, 512)]
    pictures = [
        plots.costs({"ring": [0.1, 0.2]}, [2, 4], "An allreduce"),
        plots.efficiency({"Inception V3": steps}, "Efficiency"),
        plots.published(),
        plots.fitted(simulate.fit(counts, seconds), counts, seconds, 64),
        plots.timeline(steps[-1]),
    ]
    for fig in pictures:
        fig.canvas.draw()
        (axes,) = fig.axes
        assert axes.get_title() and axes.get_xlabel()
        assert len(axes.lines) + len(axes.collections) > 0
