"""Is the house in order: its layout, and the words it speaks?"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
house = import_module("house")
sys.path.pop(0)


@pytest.mark.parametrize("figure", house.FIGURES, ids=lambda figure: figure.name)
def test_no_figure_is_over_its_bound(figure):
    """What was put in order stays so; a bound is only ever tightened."""
    assert figure.measure() <= figure.most


def test_the_words_to_avoid_are_those_of_the_glossary():
    """The page that people read is the list that is counted."""
    assert {"told", "nobody", "decibans"} <= {*house.avoided()}
