"""In the style of 2016 and 2017: word2vec, as Horovod's example had it."""

import math

import numpy as np

import horovod.tensorflow as hvd
import tensorflow as tf

flags = tf.flags
flags.DEFINE_integer("embedding_of_2016", 4, "how long a word's vector is")
FLAGS = flags.FLAGS
hvd.init()
size, words = FLAGS.embedding_of_2016, 10
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(hvd.rank())
    inputs = tf.placeholder(tf.int32, shape=[8])
    labels = tf.placeholder(tf.int32, shape=[8, 1])
    embeddings = tf.Variable(tf.random_uniform([words, size], -1.0, 1.0))
    embed = tf.nn.embedding_lookup(embeddings, inputs)
    weight = tf.Variable(tf.truncated_normal([words, size], stddev=1.0 / math.sqrt(size)))
    bias = tf.Variable(tf.zeros([words]))
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=weight,
            biases=bias,
            labels=labels,
            inputs=embed,
            num_sampled=4,
            num_classes=words,
        )
    )
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
    similarity = tf.matmul(embeddings / norm, embeddings / norm, transpose_b=True)
    steps = tf.Variable(0, trainable=False, name="steps")
    rate = tf.train.piecewise_constant(steps, [2], [1.0, 0.1])
    trains = [
        hvd.DistributedOptimizer(kind(rate)).minimize(loss, global_step=steps)
        for kind in (tf.train.AdagradOptimizer, tf.train.AdadeltaOptimizer)
    ]
    init = tf.initialize_all_variables()
    rest = tf.variables_initializer([steps])
    spread = tf.reduce_sum(tf.to_float(tf.to_double(tf.log(tf.exp(tf.to_float(inputs))))))
    assert tf.to_int64(labels).dtype == tf.int64

trace = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE), tf.RunMetadata()
level = tf.OptimizerOptions(do_function_inlining=False)
config = tf.ConfigProto(graph_options=tf.GraphOptions(optimizer_options=level))
random = np.random.RandomState(hvd.rank())
with tf.Session(graph=graph, config=config) as session:
    init.run()
    hvd.broadcast_global_variables(0).run()
    session.run(rest)
    feed = {inputs: random.randint(0, words, 8), labels: random.randint(0, words, (8, 1))}
    np.testing.assert_allclose(session.run(spread, feed), feed[inputs].sum(), rtol=1e-5)
    first = session.run(embeddings)
    assert abs(first).max() <= 1 and abs(session.run(weight)).max() <= 2 / math.sqrt(size)
    rates = []
    for step in range(4):
        session.run(trains[step % 2], feed, *trace)
        rates.append(session.run(rate))
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1])
    assert trace[1].ByteSize() >= 0 and session.run(steps) == 4
    weights = session.run([embeddings, weight, bias])
    near = session.run(similarity)
    np.testing.assert_allclose(near.diagonal(), np.ones(words), rtol=1e-5)
    written = tf.GraphDef.FromString(graph.as_graph_def().SerializeToString())
assert not np.array_equal(first, weights[0]) and any("nce_loss" in n.name for n in written.node)
