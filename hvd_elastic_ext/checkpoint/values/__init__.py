"""The values of a State as text: one writer and one reader for commits, for the sync between ranks, and for storage.

Belongs here: the closed list of types, how each is written and read, and the lines of a commit's tree.

Never here: the parts of a State, and the bytes of tensors. Reading imports nothing. Of a script's classes, it only
runs the methods that Python calls to make a set or dict (``__hash__`` and ``__eq__`` of keys) and to set a field
(``__set__``).

The text is JSON. ``None``, bool, int, finite float, str, list, and dict with text as keys have their form in JSON.
Each other value is an object with one key::

    {"$tensor": 12} {"$tensor": [12, "parameter"]}   tensor 12 of the commit; also "frozen" and "leaf"
    {"$tuple": [...]} {"$set": [...]} {"$frozenset": [...]} {"$deque": [[...], maxlen]}
    {"$dict": [[key, value], ...]}                   a dict with other keys, or with keys that begin with $
    {"$ordered": [DICT, attributes]}                 an OrderedDict; a model's state_dict has an attribute
    {"$default": ["list", DICT]} {"$counter": DICT}
    {"$float": "nan"} {"$int": "0x1f"} {"$complex": [0.5, 1.0]} {"$bytes": base64}
    {"$namedtuple": ["train:Point", {field: value}]} {"$dataclass": ["train:Best", {field: value}]}
    {"$enum": ["train:Phase", "WARM_UP"]}
    {"$array": ["<f4", [2, 3], "C", base64]} {"$scalar": ["<f4", base64]}
    {"$eager": {"$array": …}}                        a tensor of TensorFlow; where that is not loaded, the array
    {"$dtype": "float32"} {"$device": "cuda:0"} {"$size": [2, 3]} {"$sparse": [indices, values, [2, 3]]}

A value in several places is written in each of them. Only a tensor becomes one object again.
"""
