"""Waits inside TensorFlow's own code end with an interrupt, and with a rank that has left."""

from pathlib import Path

import pytest
from mpi import launch

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


WAYS = ["eager", "function", "program", "session"]


@pytest.fixture(scope="module")
def interrupted():
    """What two ranks print: in each of the ways rank 0 is interrupted while it waits alone."""
    outcome = launch(
        """
        import os, signal, sys, threading, time
        import tensorflow as tf
        import hvdlite.tensorflow as hvd
        from hvdlite import testing

        hvd.init()

        def interrupt_the_wait():
            while not testing.pending():
                time.sleep(0.01)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

        def lonely():
            return hvd.allreduce(tf.ones([2]), name="lonely")

        def session():
            with tf.Graph().as_default(), tf.compat.v1.Session() as s:
                return s.run(lonely())

        ways = {"eager": lonely, "function": tf.function(lonely), "session": session}
        ways["program"] = tf.function(lonely, jit_compile=True)
        for way, wait in ways.items():
            if hvd.rank() == 0:
                threading.Thread(target=interrupt_the_wait, daemon=True).start()
                try:  # TensorFlow reports it as its own error, the interrupt, or a mixture of both
                    try:
                        wait()
                    except (tf.errors.OpError, RuntimeError):
                        time.sleep(1)
                        print(way, "interrupted", flush=True)
                except KeyboardInterrupt:
                    print(way, "interrupted", flush=True)
                time.sleep(2)  # the other rank is told of the interrupt, not of what comes next
            else:
                while not os.path.exists("/nowhere"):
                    try:
                        hvd.allreduce(tf.ones([2]), name="other")
                    except hvd.HorovodInternalError as error:
                        print(way, "told:", error, flush=True)
                        break
            hvd.shutdown()
            hvd.init()
            assert hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy() == [2.0]
            print(way, "goes on", flush=True)
        """,
        2,
        timeout=150,
        env=QUIET,
    )
    assert outcome.returncode == 0, outcome
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_a_wait_in_a_graph(interrupted, way):
    out = interrupted.stdout
    assert f"{way} interrupted" in out, interrupted
    assert f"{way} told: rank 0 was interrupted in allreduce 'lonely'" in out, interrupted
    assert out.count(f"{way} goes on") == 2, interrupted


def _train(folder: str, last: int) -> list:
    """A monitored session of TensorFlow 1 that trains up to step `last`; its steps and values."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    hvd.init()
    folder = folder if hvd.rank() == 0 else None
    if folder and (tf.train.latest_checkpoint(folder) or "").endswith(f"-{last}"):
        return []  # nothing is left to do
    v1, found = tf.compat.v1, []
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=[1.0 + hvd.rank()])
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1 * hvd.size(), 0.9))
        train = optimizer.minimize(tf.reduce_sum(x * x) * (1.0 + hvd.rank()), global_step=step)
        with tf.control_dependencies([train]):
            state = [step.read_value(), x.read_value()]
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last)]
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, save_summaries_steps=None, log_step_count_steps=None
        ) as session:
            while not session.should_stop():
                at, value = session.run(state)
                found.append([int(at), float(value[0])])
    return found


@pytest.mark.slow
def test_a_rank_whose_session_has_nothing_to_do_ends_the_others_wait(ranks, tmp_path):
    """Rank 0 finds its training finished in the checkpoint and leaves at once."""
    zero, one = ranks(2).run(_train, str(tmp_path), 4)
    assert zero == one and len(zero) == 4
    program = f"""
        import runpy, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        runpy.run_path({__file__!r})["_train"]({str(tmp_path)!r}, 4)
        """
    again = launch(program, 2, timeout=120, env=QUIET)
    assert again.returncode != 0, again
    assert "rank 0" in again.stderr and "has ended its program" in again.stderr, again


def test_a_monitored_session_goes_on_from_the_roots_checkpoint(ranks, tmp_path):
    """Rank 0 alone has the checkpoint; the others get all of it, the momentum too."""
    first = ranks(2).run(_train, str(tmp_path), 2)
    then = ranks(2).run(_train, str(tmp_path), 4)
    assert first[0] == first[1] and then[0] == then[1]
    x, momentum, expected = 1.0, 0.0, []
    for step in range(1, 5):
        momentum = 0.9 * momentum + 3 * x  # the mean of both ranks' gradients, 2x and 4x
        x -= 0.2 * momentum
        expected.append([step, pytest.approx(x, abs=1e-5)])
    assert first[0] + then[0] == expected
