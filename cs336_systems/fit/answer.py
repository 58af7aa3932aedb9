"""The answer to what fits: a sentence, a table, and JSON."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cs336_systems.fit.recorded import ELSEWHERE, Error
from cs336_systems.fit.verdict import Prediction, errors_on, recorded_on
from cs336_systems.measure.gpus import gpu_of

GB = 1e9
COLUMNS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer",
    "activations": "activations",
    "weight_copies": "copies",
    "temporaries": "temporary",
}
"""The columns of the table; the rest is one."""
TRACED = "factor 2"
"""Error of a traced step's time to expect: published models on an H100 took 0.9 to 2 times as long as predicted."""
MOST_GPUS = 1024
"""Maximum number of GPUs up to which the answer searches for enough."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Training configurations of a model, and the best of them."""

    title: str
    gpu: str
    gpus: int
    capacity: float
    """Bytes of a GPU's memory."""
    batch: str
    """The batch of one GPU in words."""
    tokens: int
    """Tokens in it, or inputs of another kind."""
    ways: tuple[Prediction, ...]
    price: float | None
    """Price of a GPU-hour."""
    elsewhere: Callable[[int], tuple[Prediction, ...]]
    """The ways with another number of GPUs."""
    unit: str = "tokens"
    """The word for what `tokens` counts."""

    @property
    def best(self) -> Prediction:
        """The fastest configuration that fits, or else the one with the least memory."""
        for wanted in ("fits", "tight"):
            if suited := [way for way in self.ways if way.outcome == wanted]:
                return min(suited, key=lambda way: max(way.seconds, way.host_seconds))
        return min(self.ways, key=lambda way: way.total)

    def tokens_per_second(self, way: Prediction) -> float:
        """Tokens per second and GPU."""
        return self.tokens / max(way.seconds, way.host_seconds if way.host_bound else 0.0)

    def price_per_million(self, way: Prediction) -> float | None:
        """Price of a million tokens."""
        return None if self.price is None else self.price * 1e6 / self.tokens_per_second(way) / 3600

    def sentence(self) -> str:
        """The answer in one sentence."""
        best = self.best
        use = f"{best.way}, {best.total / GB:.1f} of {self.capacity / GB:.1f} GB"
        if best.outcome == "does not fit":
            least = "at least " if best.at_least else ""
            need = f"{least}{best.total / GB:.1f} GB, but a GPU has {self.capacity / GB:.1f} GB"
            return f"No: even the smallest configuration ({best.way}) needs {need}{self._enough()}."
        if best.at_least:
            use += " plus convolution workspaces, which are not predicted"
        speed = f"{three_digits(self.tokens_per_second(best))} {self.unit}/s per GPU"
        price = self.price_per_million(best)
        cost = "" if price is None else f", {price:.3g} per million {self.unit}"
        return f"{'Yes' if best.outcome == 'fits' else 'Perhaps'}: {use}, {speed}{cost}."

    def _enough(self) -> str:
        count = 2 * self.gpus
        while count <= MOST_GPUS:
            ways = self.elsewhere(count)
            if fitting := [way for way in ways if way.outcome == ("tight" if way.at_least else "fits")]:
                fastest = min(fitting, key=lambda way: way.seconds)
                least = "at least " if fastest.at_least else ""
                return f"; {fastest.way} needs {least}{fastest.total / GB:.1f} GB on each of {count} GPUs"
            count *= 2
        return f"; up to {MOST_GPUS} GPUs are not enough either"

    def __str__(self) -> str:
        """The sentence, the table, and the errors of its numbers."""
        import pandas

        where = f"{self.title} on {self.gpus} x {self.gpu}, {self.batch} on each"
        lines = [self._line(way) for way in self.ways]
        table = pandas.DataFrame(lines).to_string(index=False)
        about = f"GB at the peak of a step, ms per step, {self.unit}/s per GPU"
        return f"{self.sentence()}\n\n{where}: {about}\n\n{table}\n\n{self._source()}"

    def _line(self, way: Prediction) -> dict[str, str]:
        parts = {title: getattr(way.memory, name) for name, title in COLUMNS.items()}
        bound = "≥ " if way.host_bound else ""
        line = {
            "": way.way,
            "fits": {"fits": "yes", "tight": "tight", "does not fit": "no"}[way.outcome],
            "GB": f"{'≥ ' if way.at_least else ''}{way.total / GB:.1f}",
            "± ": within(way.memory_error),
            **{title: f"{size / GB:.1f}" for title, size in parts.items()},
            "rest": f"{(way.total - sum(parts.values())) / GB:.1f}",
            "ms": f"{bound}{three_digits(1e3 * way.seconds)}",
            "±": self._time_error(way),
            f"{self.unit}/s": three_digits(self.tokens_per_second(way)),
        }
        price = self.price_per_million(way)
        return line if price is None else {**line, f"price/M {self.unit}": f"{price:.3g}"}

    def _time_error(self, way: Prediction) -> str:
        if way.kind == "traced":
            return TRACED
        return within(way.time_error) if self._recorded else f"{ELSEWHERE:.0%}"

    @property
    def _recorded(self) -> bool:
        return gpu_of(errors_on(self.gpu).gpu) is gpu_of(self.gpu)

    def _source(self) -> str:
        lines = [
            "rest: library workspaces, allocator rounding, the CUDA context and NCCL buffers\n"
            "tight: too close to call, given the prediction error and the allocator's gaps\n"
            "≥: a lower bound; GB excludes convolution workspaces, ms the launch overhead of host-bound steps",
        ]
        if any(way.kind == "traced" for way in self.ways):
            lines.append(
                "Traced on the meta device as eager PyTorch with fused AdamW: expect memory within 2 % and time\n"
                "within a factor of 2."
            )
        elif self._recorded:
            fitted = "" if recorded_on(self.gpu) else "; the time model was not fitted to them"
            lines.append(f"±: largest error on recorded steps of this kind on this GPU, and their number{fitted}")
        else:
            lines.append(
                f"No steps are recorded on this GPU: expect memory within 2 % and time within {ELSEWHERE:.0%}."
            )
        return "\n".join(lines)

    def as_json(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer for programs: bytes and seconds."""
        return {
            "question": dict(question),
            "answer": self.sentence(),
            "capacity": self.capacity,
            "recorded_on_this_gpu": self._recorded,
            "time_error_elsewhere": None if self._recorded else ELSEWHERE,
            "ways": [self._entry(way) for way in self.ways],
        }

    def _entry(self, way: Prediction) -> dict[str, Any]:
        entry = asdict(way)
        entry["memory"]["total"] = way.memory.total
        return entry | {
            "host_bound": way.host_bound,
            "tokens_per_second": self.tokens_per_second(way),
            "price_per_million_tokens": self.price_per_million(way),
        }


def within(error: Error | None) -> str:
    """The largest error, and the number of cells."""
    return "–" if error is None else f"{error.most:.1%} ({error.cells})"


def three_digits(number: float) -> str:
    """A number with three significant digits.

    >>> three_digits(24_949), three_digits(999.6), three_digits(87.24)
    ('24 900', '1 000', '87.2')
    """
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}".replace(",", " ") if rounded >= 100 else f"{rounded:g}"
