"""hvd.elastic for TensorFlow 2 and 1: also errors inside a graph lead back to the last commit."""


def _loop() -> tuple:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    x = tf.Variable([1.0 + hvd.rank()])
    untracked = tf.Variable(0)
    state = hvd.elastic.TensorFlowState([x], step=0)

    @tf.function
    def step(shape):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = x * x * float(hvd.rank() + 1)
        hvd.allreduce(tf.ones(shape), name="wrong")
        x.assign_sub(0.1 * tape.gradient(loss, [x])[0])

    values = []

    @hvd.elastic.run
    def train(state):
        while state.step < 4:
            untracked.assign_add(1)
            fails = state.step == 2 and int(untracked) == 3
            step([2 + hvd.rank() if fails else 2])
            state.step += 1
            if state.step != 2:  # so the failure goes back behind a step that was made
                state.commit()
            values.append(float(x[0]))

    train(state)
    expected = [1.0]
    for _ in range(4):
        expected.append(expected[-1] * (1 - 0.1 * 3))
    return values, [expected[i] for i in (1, 2, 2, 3, 4)]


def test_an_error_inside_a_graph_leads_back_to_the_last_commit(ranks):
    for values, expected in ranks(2).run(_loop, timeout=240):
        assert [round(value, 5) for value in values] == [round(value, 5) for value in expected]


def _session() -> list:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=1.0 + hvd.rank())
        add = x.assign_add(1.0)
        session.run(v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=0)
        state.sync()
        found = [float(session.run(x)), state.step]
        session.run(add)
        state.step = 1
        state.commit()
        session.run(add)
        state.step = 2
        state.restore()
        return [*found, float(session.run(x)), state.step]


def test_the_variables_of_a_session(ranks):
    assert ranks(2).run(_session, timeout=240) == [[1.0, 0, 2.0, 1]] * 2
