"""Settings that travel to a node: the same after the way, and one line for whatever is not them."""

from __future__ import annotations

import json
import pickle

import pytest

from privfed.config.composition import compose
from privfed.federation.client_factory import ClientFactory
from privfed.federation.node_settings import Welcome
from privfed.foundation.errors import ConfigError

WELCOME = Welcome({"_target_": "a.B"}, None, {"n": 1}, 3, 10, 0, range(4, 9), 2, ["x", "y"], "mse")


def test_it_comes_back_as_it_was():
    assert Welcome.from_json(WELCOME.to_json()) == WELCOME


def test_names_of_columns_from_a_configuration_travel():
    """Hydra gives them as a list of its own, which is no JSON."""
    cfg = compose(["data=remote", "data.d=2", "data.n=1", "data.columns=[a, b]"])
    text = ClientFactory.of(cfg).welcome(range(1)).to_json()
    assert Welcome.from_json(text).columns == ["a", "b"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": None}, "'seed' cannot be None"),
        ({"seed": True}, "'seed' cannot be True"),
        ({"users": [1]}, "'users' cannot be"),
        ({"users": [0, "9"]}, "'users' cannot be"),
        ({"columns": [1]}, "'columns' cannot be"),
        ({"client": []}, "'client' cannot be"),
        ({"simulated": 1}, "'simulated' cannot be 1"),
        ({"rank": 1}, "'rank', which a client does not take"),
    ],
)
def test_a_field_of_another_kind_is_one_line(changed, words):
    with pytest.raises(ConfigError, match=words):
        Welcome.from_json(json.dumps(json.loads(WELCOME.to_json()) | changed))


def test_missing_fields_and_other_texts_are_one_line():
    told = json.loads(WELCOME.to_json())
    for name in told:
        less = {key: value for key, value in told.items() if key != name}
        with pytest.raises(ConfigError, match=f"lack '{name}'"):
            Welcome.from_json(json.dumps(less))
    for text in ("", "{", "[]", "7"):
        with pytest.raises(ConfigError, match="cannot be read"):
            Welcome.from_json(text)


def test_a_factory_keeps_its_source_and_sends_settings_only():
    factory = ClientFactory.of(compose(["data.n=4", "data.d=4"]))
    assert factory.keeping("here").source is factory.source
    other = pickle.loads(pickle.dumps(factory))
    assert other == factory and other.given_source is None and "source" not in vars(other)
