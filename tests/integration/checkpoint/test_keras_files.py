"""Exports of Keras models: what Keras itself reads from them, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from hvd_elastic_ext.checkpoint.conversion import keras_files
from hvd_elastic_ext.checkpoint.format import descriptions
from hvd_elastic_ext.checkpoint.format.descriptions import Description
from hvd_elastic_ext.cli import main
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.parts.choose import part_of_ours
from hvd_elastic_ext.worker.parts.tensorflow_parts import VariablesPart
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.importing import Importing
from tests.contract.parts.cases import keras_on_torch
from tests.contract.parts.tensorflow_cases import of_tensorflow
from tests.integration.checkpoint.made_checkpoints import OfParts, kept, save, trained
from tests.support.processes import run_process
from tests.support.tensorflow import is_keras_3_there, needs_tensorflow

ROWS = torch.linspace(-1, 1, 24).view(6, 4).numpy()


@pytest.fixture
def tf() -> Iterator[Any]:
    with of_tensorflow() as found:
        yield found


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets these for its process, which here is that of all tests."""
    for name, value in {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu", "TF_USE_LEGACY_KERAS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


def inventory(**values: Any) -> Inventory:
    names = ParameterNames()
    parts = {name: part_of_ours(value, names) for name, value in values.items()}
    names.models = lambda: {name: value for name, value in values.items() if name != "optimizer"}
    return Inventory(object(), parts, names=(), part_for=lambda value: part_of_ours(value, names))


def stored(place: Path, *ranks: Inventory) -> Path:
    """A checkpoint of one commit, with a part of each rank."""
    with ExitStack() as stack:
        commits = [
            stack.enter_context(kept(OfParts(each), Identity(7, 0, 1, 5), rank=rank)) for rank, each in enumerate(ranks)
        ]
        save(place, commits)
    return place


def export(store: Path, to: Path, *more: str) -> Path:
    assert main(["checkpoints", "export", str(store), "--to", str(to), *more]) == 0
    return to


def refused(store: Path, to: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert main(["checkpoints", "export", str(store), "--to", str(to), *more]) in (1, 2)
    assert not to.exists()
    [line] = capsys.readouterr().err.splitlines()
    return line


def trained_on(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "mse", run_eagerly=True)
    model.train_on_batch(ROWS, ROWS[:, :2])
    return model


def sequential(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, activation="tanh"), layers.BatchNormalization(), layers.Dense(2)]
    )


def built_by_a_call(keras: Any) -> Any:
    model = keras.Sequential([keras.layers.Dense(3, activation="relu"), keras.layers.Dense(2)])
    model(ROWS)
    return model


def branched(keras: Any) -> Any:
    """With a layer that is there twice, a frozen one, a model within it, and dropout."""
    layers = keras.layers
    inputs = keras.Input((4,))
    twice = layers.Dense(4, activation="tanh")
    within = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    left, right = within(twice(inputs)), layers.Dense(3, trainable=False)(twice(twice(inputs)))
    joined = layers.Dropout(0.5)(layers.Concatenate()([left, right]))
    return keras.Model(inputs, layers.Dense(2)(joined))


def with_operations(keras: Any) -> Any:
    """Operations of TensorFlow between layers: they become layers."""
    import tensorflow as tf

    inputs = keras.Input((4,))
    shifted = tf.nn.relu(keras.layers.Dense(4)(inputs) * 2.0 + tf.constant([1.0, 2.0, 3.0, 4.0]))
    return keras.Model(inputs, keras.layers.Dense(2)(tf.concat([shifted, inputs[:, 1:3]], axis=1)))


def with_a_step_of_its_own(keras: Any) -> Any:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    inputs = keras.Input((4,))
    return Own(inputs, keras.layers.Dense(2)(inputs))


def compiled_within(keras: Any) -> Any:
    """A model within a model, which Keras writes with what it was compiled with."""
    within = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    within.compile("adam", "mse", metrics=["mae"])
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(2)(within(inputs)))


def of_many_kinds(keras: Any) -> Any:
    """Layers in layers, activations as functions, and whatever else Keras writes with a module."""
    layers = keras.layers
    inputs = keras.Input((4,))
    rows = layers.Reshape((2, 2))(layers.Dense(4, activation=keras.activations.gelu)(inputs))
    rows = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(rows)
    rows = layers.TimeDistributed(layers.Dense(4, kernel_regularizer="l2", kernel_constraint="unit_norm"))(rows)
    rows = layers.RNN(layers.StackedRNNCells([layers.GRUCell(3), layers.SimpleRNNCell(2)]))(rows)
    rows = layers.Activation("softmax")(layers.Dense(3, bias_initializer=keras.initializers.Constant(0.5))(rows))
    return keras.Model(inputs, layers.Dense(2, dtype="float32")(layers.Rescaling(2.0)(rows)))


def with_operations_of_keras_3(keras: Any) -> Any:
    inputs = keras.Input((4,))
    shifted = keras.ops.relu(keras.layers.Dense(4)(inputs) * 2.0 - inputs[:, 1:2])
    return keras.Model(inputs, keras.layers.Dense(2)(keras.ops.concatenate([shifted, keras.ops.exp(inputs)], axis=1)))


LOAD = """
def load(tf, file, rows):
    model = tf.keras.models.load_model(file)
    return {"predicts": model(rows).numpy().tolist(), "layers": [layer.name for layer in model.layers]}
"""


def load(tf: Any, file: Path) -> Any:
    """What a model that Keras loads predicts, and its layers.

    With Keras 2 as ``keras`` and as ``tf_keras``, both of which Horovod imports, Keras makes layers of the other one,
    and gives them no weights. So that is done in a process with one of them.
    """
    if is_keras_3_there() or importlib.util.find_spec("tf_keras") is None:
        found: dict[str, Any] = {}
        exec(LOAD, found)
        return found["load"](tf, file, ROWS)
    script = "import json, sys, numpy, tensorflow as tf\n" + LOAD
    script += "print(json.dumps(load(tf, sys.argv[1], numpy.array(json.loads(sys.argv[2]), 'float32'))))"
    with run_process([sys.executable, "-c", script, str(file), json.dumps(ROWS.tolist())]) as process:
        assert process.wait(60) == 0, process.output
    return json.loads(process.stdout.splitlines()[-1])


MODELS = (
    sequential, built_by_a_call, branched, with_operations, with_a_step_of_its_own, compiled_within, of_many_kinds,
)  # fmt: skip


@needs_tensorflow
@pytest.mark.parametrize("make", MODELS)
def test_keras_loads_both_files_and_predicts_the_same(make: Callable[[Any], Any], tf: Any, tmp_path: Path) -> None:
    keras = tf.keras
    model = trained_on(make(keras), keras.optimizers.Adam(0.01))
    store = stored(tmp_path / "store", inventory(model=model, optimizer=model.optimizer))
    expected = model(ROWS).numpy().tolist()
    loaded = load(tf, export(store, tmp_path / "out.keras"))
    assert loaded == {"predicts": expected, "layers": [layer.name for layer in model.layers]}
    other = make(keras)  # with other names: Keras counts its layers
    other.load_weights(str(export(store, tmp_path / "out.weights.h5")))
    assert other(ROWS).numpy().tolist() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.keras", "out.weights.h5", "store"]


@needs_tensorflow
def test_what_stateful_layers_remember_is_left_out_of_keras_files(tf: Any, tmp_path: Path) -> None:
    keras = tf.keras
    layers = [keras.layers.Reshape((4, 1)), keras.layers.SimpleRNN(3, stateful=True), keras.layers.Dense(2)]
    model = trained_on(keras.Sequential([keras.Input((4,), batch_size=6), *layers]), keras.optimizers.Adam(0.01))
    store = stored(tmp_path / "store", inventory(model=model))
    assert any(part.numpy().any() for part in model.layers[1].states)
    loaded = load(tf, export(store, tmp_path / "out.keras"))
    model.reset_states()
    assert loaded["predicts"] == model(ROWS).numpy().tolist()


@needs_tensorflow
def test_safetensors_have_the_names_of_the_lowest_rank_and_other_names_are_no_obstacle(tf: Any, tmp_path: Path) -> None:
    keras = tf.keras
    first = trained_on(sequential(keras), keras.optimizers.Adam(0.01))
    newcomer = sequential(keras)
    newcomer.set_weights(first.get_weights())
    assert first.variables[0].name != newcomer.variables[0].name
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(newcomer.trainable_variables)
    for mine, theirs in zip(optimizer.variables, first.optimizer.variables, strict=True):
        mine.assign(theirs)
    ranks = inventory(model=first, optimizer=first.optimizer), inventory(model=newcomer, optimizer=optimizer)
    found = load_file(export(stored(tmp_path / "store", *ranks), tmp_path / "out.safetensors"))
    expected = {f"model.{each.name[:-2]}": each for each in first.variables}
    expected |= {f"optimizer.{each.name[:-2]}": each for each in first.optimizer.variables}
    assert {name: value.tolist() for name, value in found.items() if name in expected} == {
        name: value.numpy().tolist() for name, value in expected.items()
    }
    turned = load_file(export(stored(tmp_path / "turned", *ranks[::-1]), tmp_path / "turned.safetensors"))
    assert {f"model.{each.name[:-2]}" for each in newcomer.variables} <= turned.keys()


@needs_tensorflow
def test_a_name_that_several_variables_have_gets_their_places(tf: Any, tmp_path: Path) -> None:
    variables = [tf.Variable([1.0], name="w"), tf.Variable([2.0], name="b"), tf.Variable([3.0], name="w")]
    part = VariablesPart(variables, lambda: variables)
    own = Inventory(object(), {"variables": part}, names=(), part_for=lambda value: None)
    found = load_file(export(stored(tmp_path / "store", own), tmp_path / "out.safetensors"))
    assert {name: value.tolist() for name, value in found.items()} == {
        "variables.w.0": [1.0], "variables.b": [2.0], "variables.w.2": [3.0],
    }  # fmt: skip


@needs_tensorflow
def test_an_export_to_pt_is_loaded_again_into_a_model_with_other_names(tf: Any, tmp_path: Path) -> None:
    keras = tf.keras
    model, other = (trained_on(branched(keras), keras.optimizers.Adam(0.01)) for _ in range(2))
    store = stored(tmp_path / "store", inventory(model=model, optimizer=model.optimizer))
    into = inventory(model=other, optimizer=other.optimizer)
    assert Importing().take(export(store, tmp_path / "out.pt"), into, None)
    assert other(ROWS).numpy().tolist() == model(ROWS).numpy().tolist()
    for mine, theirs in zip(other.optimizer.variables, model.optimizer.variables, strict=True):
        assert mine.numpy().tolist() == theirs.numpy().tolist()


@needs_tensorflow
def test_a_tensor_of_tensorflow_is_exported_as_one_of_torch_and_comes_back(tf: Any, tmp_path: Path) -> None:
    def values(best: Any) -> Inventory:
        return Inventory(SimpleNamespace(best=best), {}, names=["best"], part_for=lambda value: None)

    out = export(stored(tmp_path / "store", values(tf.constant([0.5, 1.0]))), tmp_path / "out.pt")
    assert torch.load(out, weights_only=True)["best"].tolist() == [0.5, 1.0]
    into = values(tf.constant(0.0))
    assert Importing().take(out, into, None)
    assert isinstance(into.owner.best, tf.Tensor)
    assert into.owner.best.numpy().tolist() == [0.5, 1.0]


OWN = """
import tensorflow as tf

class Own(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(2)

    def call(self, rows):
        return self.second(self.first(rows))

def made():
    model = Own()
    model(tf.zeros((1, 4)))
    return model

def wider():
    return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(9)])

def unbuilt():
    return Own()
"""


@pytest.fixture
def subclassed(tf: Any, tmp_path: Path) -> tuple[Any, Callable[[], Any], Path]:
    """A model of the user's own class; how to make another one; its checkpoint."""
    found: dict[str, Any] = {}
    exec(OWN, found)
    (tmp_path / "own.py").write_text(OWN)
    model = trained_on(found["made"](), tf.keras.optimizers.SGD(0.1))
    return model, found["made"], stored(tmp_path / "store", inventory(model=model))


@needs_tensorflow
@pytest.mark.parametrize("ending", ["keras", "weights.h5"])
def test_a_subclassed_model_needs_a_function_that_makes_it_and_is_refused_in_one_line_without(
    ending: str,
    subclassed: tuple[Any, Callable[[], Any], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, made, store = subclassed
    out = tmp_path / f"out.{ending}"
    assert refused(store, out, capsys) == (
        "hvd-elastic checkpoints: model: Keras cannot build it by itself (it is subclassed, or it has a Lambda or "
        "layers that are not Keras' own); give --model FILE.py:FUNCTION, a function of yours that returns the model, "
        "built"
    )
    own = f"{tmp_path}/own.py"
    assert "own.py has no function other" in refused(store, out, capsys, "--model", f"{own}:other")
    assert "there is no file none.py" in refused(store, out, capsys, "--model", "none.py:made")
    assert "it returned a Own, not a Keras model that is built" in refused(
        store, out, capsys, "--model", f"{own}:unbuilt"
    )
    assert "the model that was built has 2 variables, and the checkpoint 4" in refused(
        store, out, capsys, "--model", f"{own}:wider"
    )
    export(store, out, "--model", f"{own}:made")
    other = made()
    other.load_weights(str(out))
    assert other(ROWS).numpy().tolist() == model(ROWS).numpy().tolist()


@needs_tensorflow
def test_layers_that_hold_code_are_not_described_and_never_in_a_checkpoint(
    tf: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keras = tf.keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda rows: rows * 2), keras.layers.Dense(2)])
    own = inventory(model=model)
    store = stored(tmp_path / "store", own)
    [description] = own.descriptions().values()
    assert descriptions.decode(description).config == ""
    assert "or it has a Lambda" in refused(store, tmp_path / "out.keras", capsys)


@needs_tensorflow
def test_a_number_that_json_does_not_have_leaves_a_model_without_a_description(tf: Any) -> None:
    """In a file of Keras null would be in its place."""
    keras = tf.keras
    layers = [keras.layers.Masking(float("nan")), keras.layers.Dense(2)]
    own = inventory(model=keras.Sequential([keras.Input((4, 1)), *layers]))
    [description] = own.descriptions().values()
    assert descriptions.decode(description).config == ""


def function(module: str, name: str, registered: str | None = None) -> dict[str, Any]:
    return {"class_name": "function", "module": module, "config": name, "registered_name": registered}


def layer(module: str | None, name: str, registered: str | None = None, **config: Any) -> dict[str, Any]:
    named = {"name": "evil", "trainable": True, "dtype": "float32", **config}
    return {
        "module": module, "class_name": name, "registered_name": registered, "config": named, "name": "evil",
        "inbound_nodes": [["_CONSTANT_VALUE", -1, "VICTIM", {}]],
    }  # fmt: skip


SYSTEM = function("keras.src.utils.io_utils", "os.system")
WRAPPERS = "tf_keras.src.layers.rnn.cell_wrappers"
CRAFTED: Mapping[str, Any] = {
    "'tf.io.gfile.rmtree'": layer(
        "tf_keras.src.layers.core.tf_op_layer", "TFOpLambda", "TFOpLambda", function="io.gfile.rmtree"
    ),
    "a Lambda": {"class_name": "Lambda", "config": {"function_type": "lambda", "function": ["4wAAAA==", None]}},
    "a __lambda__": {"class_name": "__lambda__", "config": {"value": "4wAAAA=="}},
    "'system' of 'os'": {"class_name": "function", "module": "os", "config": "system"},
    "'exec' of 'builtins'": {"class_name": "function", "module": "builtins", "config": "exec"},
    "'Popen' of 'subprocess'": {"class_name": "Popen", "module": "subprocess", "config": {}},
    "'os.system' of 'keras.src.utils.io_utils'": layer("keras.layers", "Activation", activation=SYSTEM),
    "'func_load' of 'keras.src.utils.generic_utils'": function("keras.src.utils.generic_utils", "func_load"),
    "'deserialize' of 'keras.activations'": function("keras.activations", "deserialize"),
    "'tanh' of 'keras.activations'": function("keras.activations", "tanh", "deserialize"),
    "'relu' of 'os'": function("os", "relu"),
    "'DropoutWrapper' of 'tf_keras.src.layers.rnn.cell_wrappers'": layer(
        WRAPPERS, "DropoutWrapper", cell=layer("keras.layers", "LSTMCell", units=1), dropout_fn=SYSTEM
    ),
    "'ResidualWrapper' of 'tf_keras.src.layers.rnn.cell_wrappers'": layer(WRAPPERS, "ResidualWrapper"),
    "'__slice__' of 'subprocess'": layer("subprocess", "__slice__", "Popen"),
    "'Dense' of 'keras.layers'": layer("keras.layers", "Dense", "Popen", units=2),
    "'deserialize' of 'keras.layers'": layer("keras.layers", "deserialize"),
    "'experimental.SyncBatchNormalization' of 'keras.layers'": layer(
        "keras.layers", "experimental.SyncBatchNormalization"
    ),
    "'Dropout'": {"class_name": "Dropout", "config": {"rate": 0.5}},
    "'__typespec__' of 'subprocess'": {
        "class_name": "__typespec__", "spec_name": "Popen", "module": "subprocess", "registered_name": None,
        "config": [],
    },
    "what it was compiled with": {**layer("keras", "Sequential"), "compile_config": {"optimizer": SYSTEM}},
    "'StringLookup' of 'keras.layers'": layer("keras.layers", "StringLookup", vocabulary=["a"]),
    "'IntegerLookup' of 'keras.layers'": layer("keras.layers", "IntegerLookup", vocabulary=[1]),
    "'TextVectorization' of 'keras.layers'": layer("keras.layers", "TextVectorization"),
    "a vocabulary from a file": layer("keras.layers", "Hashing", num_bins=3, vocabulary="/etc/hostname"),
}  # fmt: skip


@needs_tensorflow
@pytest.mark.parametrize("problem", CRAFTED)
def test_what_a_crafted_checkpoint_would_run_or_read_is_refused(
    problem: str, tf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keras 2 imports any module that a configuration names, takes what it has in it from other modules, calls any
    function of TensorFlow with constants, and reads the vocabulary of a layer from any file."""
    victim = tmp_path / "victim"
    victim.mkdir()
    evil = json.loads(json.dumps(CRAFTED[problem]).replace("VICTIM", str(victim)))
    config = {"name": "m", "trainable": True, "layers": [evil], "input_layers": [], "output_layers": []}
    crafted = {"module": "keras", "class_name": "Model", "config": config, "registered_name": None}
    own = inventory(model=sequential(tf.keras))
    description = descriptions.encode(Description((), "tf_keras 2.21.0", json.dumps(crafted)))
    monkeypatch.setattr(own, "descriptions", lambda: {"model": description})
    store = stored(tmp_path / "store", own)
    line = refused(store, tmp_path / "out.keras", capsys)
    assert f"model: it is built with {problem}, which is not done from a checkpoint; give --model" in line
    assert victim.is_dir()


@needs_tensorflow
def test_a_description_is_made_once_and_again_only_for_other_variables(tf: Any, monkeypatch: Any) -> None:
    model = sequential(tf.keras)
    part = part_of_ours(model, ParameterNames())
    part.capture()
    first = part.description()
    asked = []
    original = part._describe
    monkeypatch.setattr(part, "_describe", lambda names: asked.append(names) or original(names))
    for _ in range(3):
        part.capture()
        assert part.description() is first
    assert asked == []
    before = descriptions.decode(first).names
    model.layers[0].trainable = False  # Keras lists what is trained first
    part.capture()
    after = descriptions.decode(part.description()).names
    assert (sorted(after), len(asked)) == (sorted(before), int(after != before))
    assert after == tuple(variable.name for variable in model.variables)


@needs_tensorflow
def test_without_tensorflow_it_is_one_line_that_says_what_to_install(
    tf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = stored(tmp_path / "store", inventory(model=sequential(tf.keras)))
    monkeypatch.setattr(keras_files, "_imported", lambda package, version: None)
    assert "pip install tensorflow tf-keras, or run the command where the job trains" in refused(
        store, tmp_path / "out.keras", capsys
    )


def test_a_checkpoint_without_a_keras_model_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    with kept(trained(), Identity(7, 0, 1, 5)) as one:
        save(store, [one])
    assert refused(store, tmp_path / "out.weights.h5", capsys) == (
        "hvd-elastic checkpoints: the State holds no model of Keras; export it to .safetensors or .pt"
    )
    assert "--model is for files of Keras" in refused(store, tmp_path / "out.pt", capsys, "--model", "a.py:made")
    assert "give it .pt or .safetensors, or for a Keras model" in refused(store, tmp_path / "out.h5", capsys)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")  # of the model within
@pytest.mark.parametrize(
    "make", [sequential, built_by_a_call, branched, compiled_within, of_many_kinds, with_operations_of_keras_3]
)
def test_keras_3_loads_both_files_and_predicts_the_same(
    make: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_world, "comms", lambda: None)
    keras = keras_on_torch()
    keras.backend.clear_session()
    model = trained_on(make(keras), keras.optimizers.Adam(0.01))
    store = stored(tmp_path / "store", inventory(model=model, optimizer=model.optimizer))
    expected = model(ROWS, training=False).tolist()
    loaded = keras.models.load_model(export(store, tmp_path / "out.keras"))
    assert loaded(ROWS, training=False).tolist() == expected
    other = make(keras)
    other.load_weights(str(export(store, tmp_path / "out.weights.h5")))
    assert other(ROWS, training=False).tolist() == expected
    found = load_file(export(store, tmp_path / "out.safetensors"))
    assert {f"optimizer.{each.path}" for each in model.optimizer.variables} <= found.keys()


@pytest.mark.parametrize("data", [b"", b"odd", descriptions.encode(Description())[:-1]], ids=["empty", "odd", "cut"])
def test_a_description_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a description"):
        descriptions.decode(data)


def test_a_description_comes_back() -> None:
    one = Description(("a:0", "b\ud800"), "tf_keras 2.21.0", '{"a": 1}')
    assert descriptions.decode(descriptions.encode(one)) == one


@pytest.mark.parametrize("given", ["made", "train.py", "train.txt:made"])
def test_a_function_is_named_by_its_file(given: str) -> None:
    with pytest.raises(UsageError, match=r"write FILE\.py:FUNCTION$"):
        keras_files._returned(given)


@pytest.mark.parametrize("library", ["json", "keras"])
def test_a_users_file_does_not_replace_a_library_of_its_name(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{library}.py").write_text("class Made:\n    built = True\n\ndef made():\n    return Made()\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules, library: (before := ModuleType(library))})
    assert keras_files._returned(f"{tmp_path / library}.py:made").built
    assert sys.modules[library] is before
