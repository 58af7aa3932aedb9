"""Text of figures as it is, and their legends."""

import pytest

from scripts.rendering.style import legend, note, save, subplots

COLOUR = {"one": "red", "two": "green", "three": "blue"}


@pytest.mark.parametrize("name", ["$x$", "a$b{$", r"cost in $, or in $\frac", "a_b^c"])
def test_a_name_with_dollar_signs_is_written_as_it_is(tmp_path, name):
    save(note(f"operator {name}"), tmp_path / "figure.svg")
    assert f"<!-- operator {name} -->" in (tmp_path / "figure.svg").read_text()


def test_a_legend_shows_each_name_once_with_the_colour_of_what_is_drawn():
    figure, panels = subplots(2)
    for axes, names in zip(panels, (["one", "two"], ["two", "three"]), strict=True):
        for name in names:
            axes.plot([0, 1], [0, 1], color=COLOUR[name], label=name)
    legend(panels)
    (made,) = figure.legends
    shown = {text.get_text(): line.get_color() for text, line in zip(made.get_texts(), made.get_lines(), strict=True)}
    assert shown == COLOUR
