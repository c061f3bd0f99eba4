"""What only the parts of TensorFlow promise. What every part does is in test_parts.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import Unfit, write
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.parts import rng, tensorflow_parts
from hvd_elastic_ext.worker.parts.choose import part_for
from hvd_elastic_ext.worker.parts.tensorflow_parts import VariablesPart
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from tests.contract.parts.cases import committed, put_back
from tests.contract.parts.tensorflow_cases import (
    HOROVODS_CASES,
    KINDS,
    OPTIMIZERS,
    OTHERS,
    Weights,
    around,
    gradients,
    network,
    of_tensorflow,
    optimizer_of,
)
from tests.support.tensorflow import needs_tensorflow

ROOT = Path(__file__).parents[3]
pytestmark = needs_tensorflow


@pytest.fixture
def tf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with of_tensorflow() as found:
        yield found


def part_of(*variables: Any) -> VariablesPart:
    return VariablesPart(list(variables), lambda: variables)


@pytest.mark.parametrize("name", OTHERS)
def test_every_optimizer_of_keras_is_rolled_back_exactly_and_trains_on_alike(tf: Any, name: str) -> None:
    case = optimizer_of(1, OTHERS[name])
    case.change()
    commit = committed(case.part)
    seen = []
    for _ in range(3):
        case.change()
        case.change()
        seen.append(committed(case.part))
        put_back(case.part, commit)
        assert committed(case.part) == commit
    assert seen[0] == seen[1] == seen[2] != commit


@pytest.mark.timeout(120)
def test_horovods_optimizers_keep_the_promises_of_every_part() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.parts.horovods_optimizers"],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9 * len(HOROVODS_CASES)


# capture and restore


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_after_a_restore_leaves_the_commit_alone(tf: Any, kind: str) -> None:
    variable = tf.Variable(tf.cast([[0, 1], [1, 1]], kind))
    part = part_of(variable)
    commit = committed(part)
    lent = [tensor.clone() for tensor in commit.tensors]
    for _ in range(3):
        part.restore(lent)
        variable.assign(tf.zeros_like(variable))
        variable[1].assign(tf.cast([1, 0], kind))  # in place
        assert all(map(torch.equal, lent, commit.tensors))
    part.restore(lent)
    assert committed(part) == commit


def test_a_write_after_a_capture_leaves_what_was_captured_alone(tf: Any) -> None:
    variable = tf.Variable(tf.ones((1000,)))
    captured = part_of(variable).capture()
    for _ in range(3):
        variable.assign_add(tf.ones((1000,)))
    variable[:5].assign(tf.zeros((5,)))
    assert captured[0].unique().tolist() == [1.0]


def test_a_variable_that_is_updated_by_rows_is_captured_and_rolled_back(tf: Any) -> None:
    table = tf.Variable(tf.zeros((4, 2)))
    part = part_of(table)
    captured = part.capture()
    table.scatter_add(tf.IndexedSlices(tf.ones((2, 2)), [0, 3]))
    assert captured[0].sum() == 0
    commit = committed(part)
    table.scatter_add(tf.IndexedSlices(tf.ones((2, 2)), [1, 3]))
    put_back(part, commit)
    assert committed(part) == commit


def test_a_restored_variable_is_the_same_object_and_graphs_see_it(tf: Any) -> None:
    variable = tf.Variable([1.0, 2.0])
    total = tf.function(lambda: tf.reduce_sum(variable))
    part = part_of(variable)
    commit = committed(part)
    variable.assign([5.0, 5.0])
    assert total() == 10.0
    put_back(part, commit)
    assert total() == 3.0


def test_slots_are_firm_and_numbers_and_moving_means_may_differ_between_ranks(tf: Any) -> None:
    """A learning rate may have been set on one rank alone."""
    net = network(tf)
    optimizer = tf.keras.optimizers.Adam()
    tensorflow_parts.build(optimizer, net)
    firm = dict(zip((v.name for v in net.variables), around(net).is_firm(around(net).capture()), strict=True))
    loose = {name.split("/")[-1] for name, is_firm in firm.items() if not is_firm}
    assert loose == {"moving_mean:0", "moving_variance:0"}
    part = around(optimizer)
    names = [variable.name for variable in tensorflow_parts.optimizer_variables(optimizer)]
    loose = {name for name, is_firm in zip(names, part.is_firm(part.capture()), strict=True) if not is_firm}
    assert loose == {"iteration:0", "learning_rate:0"}


def test_the_learning_rate_and_the_loss_scale_are_rolled_back(tf: Any) -> None:
    """Keras lists neither among the variables of an optimizer."""
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
        tf.keras.optimizers.Adam(0.5), initial_scale=8, dynamic_growth_steps=2
    )
    weights = Weights(tf)
    tensorflow_parts.build(optimizer, weights)
    part = around(optimizer)

    def seen() -> list[float]:
        options = optimizer.learning_rate, optimizer.loss_scale, optimizer.dynamic_counter
        return [float(option) for option in options]

    optimizer.apply_gradients(weights.gradients(optimizer.loss_scale))
    commit, before = committed(part), seen()
    optimizer.learning_rate = 0.25
    optimizer.apply_gradients(weights.gradients(optimizer.loss_scale))
    assert seen() == [0.25, 16.0, 0.0] != before
    put_back(part, commit)
    assert seen() == before == [0.5, 8.0, 1.0]


def test_moving_means_are_rolled_back(tf: Any) -> None:
    net = network(tf)
    part = around(net)
    commit = committed(part)
    gradients(tf, net)  # in training, which moves them
    assert committed(part) != commit
    put_back(part, commit)
    assert committed(part) == commit


def test_what_stateful_layers_remember_is_rolled_back_and_may_differ_between_ranks(tf: Any) -> None:
    """Keras lists it nowhere."""
    layers = tf.keras.layers
    memory = layers.Bidirectional(layers.LSTM(2, stateful=True))
    net = tf.keras.Sequential([tf.keras.Input(batch_shape=(1, 3, 1)), memory, layers.Dense(1)])
    part, data = around(net), tf.ones((1, 3, 1))
    net(data)
    commit, then = committed(part), [net(data).numpy() for _ in range(2)]
    put_back(part, commit)
    assert [net(data).numpy() for _ in range(2)] == then
    assert part.is_firm(part.capture()) == [True] * len(net.variables) + [False] * 4


@pytest.mark.parametrize("kind", ["Adam", "legacy.Adam"])
def test_an_optimizer_that_would_make_its_slots_after_a_commit_is_built_by_its_model_or_refused(
    tf: Any, kind: str
) -> None:
    make = tf.keras.optimizers.legacy.Adam if "legacy" in kind else tf.keras.optimizers.Adam
    net, own, foreign = network(tf), make(), make()
    net.compile(optimizer=own)
    parts = {"net": around(net), "own": around(own), "foreign": around(foreign)}
    parts["own"].join(parts)
    commit = committed(parts["own"])
    own.apply_gradients(gradients(tf, net))
    put_back(parts["own"], commit)
    with pytest.raises(StateError, match=r"^state\.foreign has made no step, .* compile its model with it before$"):
        parts["foreign"].join(parts)
    foreign.apply_gradients(gradients(tf, network(tf)))
    parts["foreign"].join(parts)


def test_an_optimizer_without_slots_needs_no_step_before(tf: Any) -> None:
    optimizer, net = tf.keras.optimizers.legacy.SGD(0.1), network(tf)
    part = around(optimizer)
    part.join({"optimizer": part})
    commit = committed(part)
    optimizer.apply_gradients(gradients(tf, net))
    put_back(part, commit)
    assert committed(part) == commit


def test_a_layer_without_variables_yet_is_refused(tf: Any) -> None:
    with pytest.raises(StateError, match="'late' is not built yet"):
        around(tf.keras.layers.Dense(3, name="late"))


@pytest.mark.parametrize("kind", ["float32", "float16", "int64", "bool", "complex64"])
def test_a_tensor_of_tensorflow_is_a_plain_value(tf: Any, kind: str) -> None:
    value = tf.cast([[1, 0, 3]], kind)
    again = read(write({"best": value}, []), lambda number, kind: None)["best"]
    assert isinstance(again, tf.Tensor)
    assert again.dtype == value.dtype
    assert (again.numpy() == value.numpy()).all()


def test_a_tensor_of_text_is_refused_and_a_variable_in_a_list_gets_a_name(tf: Any) -> None:
    with pytest.raises(Unfit, match="NumPy data of the type object"):
        write(tf.constant(["text", "more"]), [])
    with pytest.raises(Unfit, match="a tensor of TensorFlow of the type qint8"):
        write(tf.cast([1], tf.qint8), [])  # it would come back as int8
    with pytest.raises(Unfit) as refused:
        write([tf.Variable(1.0)], [])
    assert refused.value.in_state == "give it a name of its own in the State: TensorFlowKerasState(..., NAME=it)"


def test_gradients_that_horovod_has_added_up_are_dropped_also_if_they_are_not_numbers(tf: Any) -> None:
    class Helper:
        backward_passes_per_step = 2
        counter = tf.Variable(1)
        locally_aggregated_grads = {0: tf.Variable([float("nan"), float("inf")])}  # noqa: RUF012

    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer._agg_helper = Helper
    part = around(optimizer)
    part.settle()
    assert int(Helper.counter) == 0
    assert Helper.locally_aggregated_grads[0].numpy().tolist() == [0.0, 0.0]


# refusals, one line each


def test_a_variable_without_numbers_is_refused_by_name(tf: Any) -> None:
    for content in ("text", tf.cast([1], tf.qint8)):
        with pytest.raises(StateError, match=r"^'words:0' is of type (string|qint8), which cannot be committed$"):
            part_of(tf.Variable(content, name="words")).capture()
    with pytest.raises(StateError, match="'bits' is of type int4, which cannot be committed"):
        tensorflow_parts.demand_numbers(tf.as_dtype("int4"), "bits")  # torch has this type, too, but not its numbers


@pytest.mark.parametrize(
    ("here", "there", "why"),
    [
        ([1.0], [1, 2], r"'here:0' is 1 float32 here and 2 int32 in the commit; build the same variables"),
        ([1.0, 2.0], [1, 2], r"'here:0' is 2 float32 here and 2 int32 in the commit"),
        ([1.0], 1.0, r"'here:0' is 1 float32 here and scalar float32 in the commit"),
    ],
)
def test_a_commit_of_another_variable_is_refused_and_changes_nothing(tf: Any, here: Any, there: Any, why: str) -> None:
    first, variable = tf.Variable([1.0]), tf.Variable(here, name="here")
    mine, theirs = part_of(first, variable), part_of(tf.Variable([2.0]), tf.Variable(there))
    before = committed(mine)
    with pytest.raises(StateError, match=why) as refused:
        put_back(mine, committed(theirs))
    assert "\n" not in str(refused.value)
    assert committed(mine) == before


def test_a_commit_of_more_variables_or_of_something_else_is_refused(tf: Any) -> None:
    mine, theirs = part_of(tf.Variable([1.0])), part_of(tf.Variable([2.0]), tf.Variable([2.0]))
    with pytest.raises(StateError, match="there are 2 variables in the commit, and 1 here; build the same variables"):
        put_back(mine, committed(theirs))
    with pytest.raises(StateError, match="something other than these variables"):
        mine.restore({"lr": 0.1})


def test_an_open_shape_takes_what_fits_it(tf: Any) -> None:
    rows = tf.Variable(tf.ones((1, 2)), shape=tf.TensorShape([None, 2]), name="rows")
    part = part_of(rows)
    put_back(part, committed(part_of(tf.Variable(tf.zeros((3, 2))))))
    assert rows.numpy().shape == (3, 2)
    with pytest.raises(StateError, match=r"'rows:0' is \?x2 float32 here and 3x3 float32 in the commit"):
        put_back(part, committed(part_of(tf.Variable(tf.zeros((3, 3))))))


def test_a_file_is_fitted_by_names_or_in_order(tf: Any) -> None:
    part = part_of(tf.Variable([1.0], name="a"), tf.Variable([2.0, 3.0], name="b"))
    one, two = torch.ones(1), torch.zeros(2)
    assert part.fitted([one, two]) == [one, two]
    assert part.fitted({"b:0": two, "a:0": one}) == [one, two]
    for given, why in (
        ({"a:0": one}, "there is no 'b:0'"),
        ({"a:0": one, "b:0": two, "c:0": two}, "there is no variable 'c:0' here"),
        ([two, one], "'a:0' is 1 float32 here and 2 float32"),
        ("text", "it is not a list of tensors"),
    ):
        with pytest.raises(StateError, match=why):
            part.fitted(given)


def test_a_file_by_names_is_refused_where_names_repeat(tf: Any) -> None:
    part = part_of(tf.Variable([1.0]), tf.Variable([2.0]))
    with pytest.raises(StateError, match="several variables are called 'Variable:0'; give a list"):
        part.fitted({"Variable:0": torch.ones(1)})


def test_what_has_no_variables_is_not_taken(tf: Any) -> None:
    assert part_for(3, ParameterNames()) is None
    assert part_for(tf.constant(1.0), ParameterNames()) is None
    assert isinstance(part_for(tf.Variable(1.0), ParameterNames()), VariablesPart)
    assert isinstance(part_for(tf.keras.metrics.Mean(), ParameterNames()), VariablesPart)


# random generators


@pytest.fixture
def global_generator(tf: Any) -> Iterator[Any]:
    from tensorflow.python.ops import stateful_random_ops as where

    kept, where.global_generator = where.global_generator, tf.random.Generator.from_seed(3)
    yield where
    where.global_generator = kept


def through_a_commit(states: Any) -> Any:
    return read(write(states, []), lambda index, kind: pytest.fail("a generator's state is not a tensor"))


def test_the_global_generator_is_rolled_back_exactly(tf: Any, global_generator: Any) -> None:
    states = through_a_commit(rng.capture())
    made = tf.random.get_global_generator()
    first = made.normal((3,)).numpy().tolist()
    for _ in range(2):
        rng.restore(states)
        assert tf.random.get_global_generator() is made
        assert made.normal((3,)).numpy().tolist() == first
    global_generator.global_generator = None  # as in a process that continues from an earlier one
    rng.restore(states)
    assert tf.random.get_global_generator().normal((3,)).numpy().tolist() == first


def test_no_global_generator_is_made_to_capture_it(global_generator: Any) -> None:
    global_generator.global_generator = None
    assert "tensorflow" not in rng.capture()
    assert global_generator.global_generator is None


def test_newcomers_seed_the_global_generator_in_their_own_way(tf: Any, global_generator: Any) -> None:
    kept = rng.capture()
    drawn = []
    for rank in (1, 2, 1):
        rng.seed_newcomer(7, 1, rank)
        drawn.append(tf.random.get_global_generator().normal((3,)).numpy().tolist())
    rng.restore(kept)
    assert drawn[0] == drawn[2] != drawn[1]


def test_generators_of_layers_stay_on_their_rank_and_are_rolled_back_exactly(tf: Any) -> None:
    """Those of preprocessing layers, and of all layers after enable_tf_random_generator()."""
    tf.keras.backend.experimental.enable_tf_random_generator()
    try:
        net = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dropout(0.5)])
    finally:
        tf.keras.backend.experimental.disable_tf_random_generator()

    def drawn() -> Any:
        return net(tf.ones((1, 64)), training=True).numpy().tolist()

    part = around(net)
    assert part.capture() == []
    states = through_a_commit(part.generators())
    assert len(states) == 2
    first = drawn()
    assert drawn() != first
    part.restore_generators(states)
    assert drawn() == first
    part.seed_generators(5)
    assert part.generators()[0] != part.generators()[1]
    seeded = drawn()
    part.seed_generators(5)
    assert drawn() == seeded != first


def test_a_layer_has_no_generator_by_default(tf: Any) -> None:
    """Its dropout is an operation that keeps its state in TensorFlow: docstring of tensorflow_rng."""
    assert around(network(tf)).generators() is None


@pytest.mark.parametrize("name", ["Nadam", "legacy Nadam"])
def test_the_names_of_an_optimizers_variables_are_encoded_once(tf: Any, name: str) -> None:
    case = optimizer_of(1, (OPTIMIZERS | OTHERS)[name])
    case.change()
    case.part.capture()
    first = case.part.description()
    case.change()
    case.part.capture()
    assert case.part.description() is first


class Graph:
    """A step of three variables as a graph, with the parts of its variables and of its optimizer."""

    def __init__(self, tf: Any, optimizer: Any, *, eagerly: bool = False) -> None:
        self.weights = [tf.Variable([1.0, float(n)]) for n in range(3)]
        self.trainable_variables = self.weights
        tensorflow_parts.build(optimizer, self)

        def step() -> None:
            optimizer.apply_gradients([(variable * 2.0, variable) for variable in self.weights])

        self.step = step if eagerly else tf.function(step)
        self.parts = part_of(*self.weights), around(optimizer)

    def content(self) -> list[list[float]]:
        return [each.reshape(-1).tolist() for part in self.parts for each in part.capture()]


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("name", ["Nadam", "legacy Nadam", "Adam"])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_process_that_makes_its_graph_after_a_restore_trains_on_as_one_that_had_made_it_before(
    tf: Any, name: str, eagerly: bool, before: int
) -> None:
    """Nadam's counter is a part of the graph: with three variables that is another graph after the third step."""
    make = (OPTIMIZERS | OTHERS)[name]
    first, second = (Graph(tf, make(tf), eagerly=eagerly) for _ in range(2))
    for _ in range(before):
        first.step()
    for part, other in zip(first.parts, second.parts, strict=True):
        put_back(other, committed(part))
    for _ in range(5):
        assert second.content() == first.content()
        first.step()
        second.step()
    assert second.content() == first.content()
