"""The names that hvdnames supplies, as its tables and its source say, and who asks for them."""

import ast
import re
from pathlib import Path

from hvdnames import keras_layers, keras_modules, keras_names, lightning_1, tensorflow_names

SOURCE = Path(keras_names.__file__).parent


def _words(text: str) -> list[str]:
    return " ".join(text.split()).split()


# What Keras 2 had under these names; they are found in TensorFlow's and Keras's own modules.
BACKEND = _words("""abs all any arange argmax argmin batch_dot batch_flatten batch_get_value
    batch_normalization batch_set_value bias_add binary_crossentropy binary_focal_crossentropy cast
    cast_to_floatx categorical_crossentropy categorical_focal_crossentropy clip concatenate constant
    conv1d conv2d conv2d_transpose conv3d cos count_params ctc_batch_cost ctc_decode
    ctc_label_dense_to_sparse cumprod cumsum depthwise_conv2d dot dropout dtype elu equal eval exp
    expand_dims eye flatten foldl foldr gather get_value gradients greater greater_equal
    hard_sigmoid in_top_k int_shape is_sparse l2_normalize less less_equal log map_fn max maximum
    mean min minimum moving_average_update name_scope ndim not_equal one_hot ones ones_like
    permute_dimensions pool2d pool3d pow prod random_bernoulli random_normal random_normal_variable
    random_uniform random_uniform_variable relu repeat repeat_elements reshape resize_images
    resize_volumes reverse rnn round separable_conv2d set_value shape sigmoid sign sin softmax
    softplus softsign sparse_categorical_crossentropy spatial_2d_padding spatial_3d_padding sqrt
    square squeeze stack std stop_gradient sum switch tanh temporal_padding tile to_dense transpose
    truncated_normal update update_add update_sub var variable zeros zeros_like""")
IMAGE = _words("""DirectoryIterator ImageDataGenerator Iterator NumpyArrayIterator
    apply_affine_transform apply_brightness_shift apply_channel_shift random_brightness
    random_channel_shift random_rotation random_shear random_shift random_zoom""")
FUNCTIONS = _words("""kl_divergence log_cosh mean_absolute_error mean_absolute_percentage_error
    mean_squared_error mean_squared_logarithmic_error""")
LEGACY = _words("Adadelta Adagrad Adam Adamax Ftrl Nadam Optimizer RMSprop SGD")
# What TensorFlow has in tensorflow.compat.v1 only, some 650 names, is supplied by one rule:
# test_tensorflow_1.py looks at each. These are the ones of Horovod's own examples and their like.
TENSORFLOW_1 = _words("""tf.AUTO_REUSE tf.layers.batch_normalization tf.layers.conv2d
    tf.layers.dense tf.layers.dropout tf.layers.flatten tf.layers.max_pooling2d
    tf.losses.mean_squared_error tf.losses.softmax_cross_entropy
    tf.losses.sparse_softmax_cross_entropy tf.metrics.accuracy tf.placeholder tf.random_uniform
    tf.squared_difference tf.truncated_normal tf.variable_scope tf.get_variable tf.get_collection
    tf.trainable_variables tf.train.AdadeltaOptimizer tf.train.AdagradOptimizer
    tf.train.AdamOptimizer tf.train.GradientDescentOptimizer tf.train.MomentumOptimizer
    tf.train.RMSPropOptimizer tf.train.LoggingTensorHook tf.train.StopAtStepHook
    tf.train.MonitoredTrainingSession tf.train.SingularMonitoredSession tf.train.Saver
    tf.train.exponential_decay tf.train.piecewise_constant tf.train.get_global_step
    tf.train.get_or_create_global_step tf.estimator.Estimator tf.estimator.EstimatorSpec
    tf.estimator.EvalSpec tf.estimator.ModeKeys tf.estimator.RunConfig tf.estimator.TrainSpec
    tf.estimator.inputs.numpy_input_fn tf.estimator.train_and_evaluate""")
# What hvdnames puts together before it says it (`used`), and the names that come of it.
PUT_TOGETHER = {
    "{method}({name}=)": [
        f"{method}({name}=)"
        for method, names in keras_names.WITHOUT_MEANING.items()
        for name in names
    ],
    "{module.__name__}": [f"keras.{name}" for name in keras_modules.MODULES[1]],
    "layers.{name}": [f"layers.{name}" for name in keras_layers._LAYERS],
    "{name}_generator()": ["fit_generator()", "evaluate_generator()", "predict_generator()"],
    "ModelCheckpoint({path!r})": ["ModelCheckpoint('...')"],
    "{module.__name__}.{name}": [
        *(f"keras.backend.{name}" for name in BACKEND),
        *(f"keras.preprocessing.image.{name}" for name in IMAGE),
        "keras.preprocessing.text",
    ],
    "tf.keras.{part}.{name}": [
        f"tf.keras.{part}.{name}" for part in ("losses", "metrics") for name in FUNCTIONS
    ],
    "optimizers.legacy.{name}": [f"optimizers.legacy.{name}" for name in LEGACY],
    "Trainer({name}='horovod')": [
        f"Trainer({name}='horovod')" for name in ("accelerator", "distributed_backend")
    ],
    "Callback.{hook}()": [f"Callback.{hook}()" for hook in lightning_1._STARTS],
    "LightningModule.{name}()": [f"LightningModule.{hook}()" for hook in lightning_1._HOOKS],
    "dataset.{_name}()": [
        f"dataset.make_{kind}_iterator()" for kind in ("initializable", "one_shot")
    ],
    "{asked}": [
        *(f"tf.{name}" for name in (*tensorflow_names.EAGER, *tensorflow_names._INITIALIZERS)),
        *TENSORFLOW_1,
    ],
}  # fmt: skip


def said() -> set[str]:
    """What the source of hvdnames says it supplies; in braces what it puts together."""
    found = set()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "used":
                found.add(_text_of(node.args[0]))
    return found


def _text_of(said: ast.expr) -> str:
    if isinstance(said, ast.Constant):
        return said.value
    if isinstance(said, ast.IfExp):  # with an addition, and without
        return _text_of(said.orelse)
    return (
        ast.unparse(said)[2:-1] if isinstance(said, ast.JoinedStr) else f"{{{ast.unparse(said)}}}"
    )


def supplied() -> set[str]:
    """Every name that hvdnames supplies."""
    found = said() - PUT_TOGETHER.keys()
    return found.union(*PUT_TOGETHER.values())


def reported(said: set[str]) -> set[str]:
    """The names of what a run says it has been supplied with (`hvdnames._used`)."""
    found = set()
    for each in said:
        name = each.removesuffix(" (and all of TensorFlow 1 from there on)")
        name = re.sub(r"^(tensorflow|keras\._tf_keras)\.keras\.", "keras.", name)
        found.add(re.sub(r"^ModelCheckpoint\('.*'\)$", "ModelCheckpoint('...')", name))
    return found


def asked_of_tensorflow(program: str) -> set[str]:
    """The names after `tf.` in a program's text.

    A run says only the first of them: from there on TensorFlow 1 is the program's `tf`.
    """
    found = set()
    for node in ast.walk(ast.parse(program)):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if re.fullmatch(r"tf(\.\w+)+", name):
            found.add(name)
    return found
