"""Waits inside TensorFlow's own code end with an interrupt, and with a rank that has left."""

import pytest
from mpi import launch

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["eager", "function", "session"])
def test_ctrl_c_ends_a_wait_in_a_graph(wait):
    outcome = launch(
        f"""
        import os, signal, threading, time
        import tensorflow as tf
        import hvdlite.tensorflow as hvd
        from hvdlite import basics

        hvd.init()

        def interrupt_the_wait():
            while not basics.engine().channels[0].agreement.pending:
                time.sleep(0.01)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

        def lonely():
            return hvd.allreduce(tf.ones([2]), name="lonely")

        def session():
            with tf.Graph().as_default(), tf.compat.v1.Session() as s:
                return s.run(lonely())

        if hvd.rank() == 0:
            threading.Thread(target=interrupt_the_wait, daemon=True).start()
            ways = {{"eager": lonely, "function": tf.function(lonely), "session": session}}
            try:  # TensorFlow reports it as its own error, the interrupt, or a mixture of both
                try:
                    ways["{wait}"]()
                except (tf.errors.OpError, RuntimeError):
                    time.sleep(1)
                    print("interrupted", flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            time.sleep(2)  # the other rank is told of the interrupt, not of what comes next
        else:
            while not os.path.exists("/nowhere"):
                try:
                    hvd.allreduce(tf.ones([2]), name="other")
                except hvd.HorovodInternalError as error:
                    print("told:", error, flush=True)
                    break
        hvd.shutdown()
        hvd.init()
        assert hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy() == [2.0]
        print("goes on", flush=True)
        """,
        2,
        timeout=120,
        env=QUIET,
    )
    assert outcome.returncode == 0, outcome
    assert "interrupted" in outcome.stdout, outcome
    assert "told: rank 0 was interrupted in allreduce 'lonely'" in outcome.stdout, outcome
    assert outcome.stdout.count("goes on") == 2, outcome


@pytest.mark.slow
def test_a_rank_whose_session_has_nothing_to_do_ends_the_others_wait(tmp_path):
    """Rank 0 finds its training finished in the checkpoint and leaves at once."""
    program = f"""
        import sys
        import tensorflow as tf
        import hvdlite.tensorflow as hvd

        tf.compat.v1.disable_eager_execution()
        hvd.init()
        x = tf.compat.v1.get_variable("x", initializer=[1.0 + hvd.rank()])
        optimizer = tf.compat.v1.train.MomentumOptimizer(0.1 * hvd.size(), 0.9)
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(optimizer)
        train = optimizer.minimize(tf.reduce_sum(x * x) * (1.0 + hvd.rank()), global_step=step)
        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),
            tf.compat.v1.train.StopAtStepHook(last_step=4),
        ]
        folder = {str(tmp_path)!r} if hvd.rank() == 0 else None
        if folder and (tf.train.latest_checkpoint(folder) or "").endswith("-4"):
            sys.exit()  # nothing is left to do
        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, save_summaries_steps=None, log_step_count_steps=None
        ) as session:
            while not session.should_stop():
                _, at, value = session.run([train, step, x])
                print(f"rank {{hvd.rank()}} step {{at}} x {{value}}", flush=True)
        """
    first = launch(program, 2, timeout=120, env=QUIET)
    assert first.returncode == 0, first
    lines = sorted(line for line in first.stdout.splitlines() if " step " in line)
    zero, one = ([line[7:] for line in lines if line.startswith(f"rank {r}")] for r in (0, 1))
    assert zero == one and len(zero) == 4, first
    again = launch(program, 2, timeout=120, env=QUIET)
    assert again.returncode != 0, again
    assert "rank 0" in again.stderr and "has ended its program" in again.stderr, again
