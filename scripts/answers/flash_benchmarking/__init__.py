"""Answers to `flash_benchmarking`: our attention kernels against plain attention, the libraries, and in the model."""

from scripts.answers.flash_benchmarking.against_plain import against_plain
from scripts.answers.flash_benchmarking.in_the_model import in_the_model, most_gained
from scripts.answers.flash_benchmarking.leaderboard import by_handout, leaderboard, next_to_the_fastest
from scripts.answers.flash_benchmarking.peers import peers
from scripts.rendering.answer import Answers, Tables, say
from scripts.rendering.markup import Tile, Typst, milliseconds, times
from scripts.views.attention_calls import OURS, availability, our_implementation, own_rows, titles
from scripts.views.attention_times import call_table


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table, steps = tables["flash"], tables["end_to_end"]
    measured, cells = not availability(table), call_table(table)
    ours, names = our_implementation(table), titles(table)
    title = "our attention" if ours == OURS else "our tiled attention"
    own = dict.fromkeys(table[own_rows(table)]["implementation"])
    return {
        "measured": measured,
        "on_gpu": ours == OURS,
        "rep": int(table["rep"].min()) if measured else None,
        "against_plain": against_plain(table, cells, ours, title, "ours"),
        "peers": peers(table, cells),
        "leaderboard": leaderboard(table, cells),
        "in_the_model": in_the_model(steps),
        **{
            f"own_{place}": against_plain(table, cells, name, f"your {names[name]}", names[name])
            for place, name in enumerate(own, start=1)
        },
        "board": by_handout(table),
        "rival": next_to_the_fastest(table, cells),
        "gained": most_gained(steps),
    }


def tiles(section: Answers) -> list[Tile]:
    """The leaderboard's cell and the training step, if they were measured."""
    shown, board, gained = [], section["board"], section["gained"]
    if board is not None:
        cell = Typst("forward and backward of causal attention in bf16 (16 heads, 16\u202f384 tokens, d = 64)")
        meaning = say("{cell}; {rival}", cell=cell, rival=section["rival"]) or cell
        shown.append(Tile(milliseconds(board["mean"]), meaning))
    if gained is not None:
        name = f"{gained['label']} at context {gained['context']} ({gained['precision']})"
        speed = gained["against plain"]
        fast, slow, ratio = ("our", "plain", speed.ratio) if speed.faster else ("plain", "our", 1 / speed.ratio)
        step = say(f"speedup of {fast} attention over {slow} attention in training {{name}}.", name=name)
        others = gained["against sdpa"].sentence("ours", "PyTorch’s SDPA")
        shown.append(Tile(times(ratio), say(step, others)))
    return shown
