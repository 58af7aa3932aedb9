"""A driver's answers about a GPU, by a stand-in for it: values, what it does not support, and throttle reasons."""

import itertools
import time

import pynvml
import pytest

from cs336_systems.measure import gpu_facts
from cs336_systems.measure.gpu_facts import idle_utilization, other_processes, read_facts
from cs336_systems.measure.gpu_state import STATE, GpuState, watts

HANDLE = "a handle"


class Field:
    """A field's value in the driver's terms."""

    nvmlReturn = 0

    class value:
        """350 W."""

        uiVal = 350_000


@pytest.fixture
def driver(monkeypatch):
    """A driver that knows one GPU; functions are added by name."""

    def answer(**answers):
        for name, value in answers.items():
            made = value if callable(value) else lambda *_, value=value: value
            monkeypatch.setattr(pynvml, f"nvml{name}", made)

    answer(Init=None, Shutdown=None, DeviceGetHandleByUUID=HANDLE)
    return answer


def raises(error):
    def read(*_):
        raise error

    return read


def test_what_a_driver_does_not_report_has_its_reason_and_costs_no_other_fact(monkeypatch):
    facts = {
        "limit": lambda handle: f"{handle} has one",
        "mig": raises(pynvml.NVMLError_NotSupported()),
        "ecc": raises(pynvml.NVMLError_NoPermission()),
        "newer": raises(AttributeError("no such function")),
    }
    monkeypatch.setattr(gpu_facts, "FACTS", facts)
    values = read_facts(HANDLE)
    assert values["limit"] == ("a handle has one", "")
    assert values["mig"] == ("", "the driver does not report it: Not Supported")
    assert values["ecc"] == ("", "the driver does not report it: Insufficient Permissions")
    assert "no such function" in values["newer"][1]


def test_a_neighbour_is_seen_by_its_work_and_its_process(driver, monkeypatch):
    monkeypatch.setattr(gpu_facts, "IDLE_INTERVAL_S", 0.0)
    busy = itertools.cycle([80, 90, 100])
    driver(DeviceGetUtilizationRates=lambda _: type("Rates", (), {"gpu": next(busy)}))
    assert idle_utilization(HANDLE) == 90
    processes = [type("Process", (), {"pid": pid}) for pid in (1, 1, gpu_facts.os.getpid())]
    driver(DeviceGetComputeRunningProcesses=processes)
    assert other_processes(HANDLE) == 1


def test_the_state_is_sampled_while_something_runs(driver):
    driver(
        DeviceGetClockInfo=lambda _, kind: {pynvml.NVML_CLOCK_SM: 1200, pynvml.NVML_CLOCK_MEM: 3201}[kind],
        DeviceGetPowerUsage=650_000,
        DeviceGetFieldValues=lambda *_: [Field()],
        DeviceGetTemperature=64,
        DeviceGetCurrPcieLinkGeneration=5,
        DeviceGetCurrPcieLinkWidth=raises(pynvml.NVMLError_NotSupported()),
    )
    reasons = itertools.chain([4 | 32], itertools.repeat(4))
    driver(DeviceGetCurrentClocksThrottleReasons=lambda _: next(reasons))
    with GpuState("0-1", STATE, 0.05) as state:
        time.sleep(0.12)
    rows = {(row.metric, row.details.get("about")): row for row in state.measurements({"device": "0", "work": "w"})}
    assert rows["sm_clock", None].median == 1200
    assert rows["memory_clock", None].median == 3201
    assert (rows["power", None].median, rows["power", None].unit) == (350, "W")
    assert rows["temperature", None].n >= 2
    assert ("link_width", None) not in rows
    assert rows["throttled", "SW power cap"].mean == 1
    assert 0 < rows["throttled", "SW thermal slowdown"].mean < 1
    assert rows["throttled", "SW power cap"].details["device"] == "0"


def test_an_older_driver_reports_its_average_of_the_power(driver, monkeypatch):
    monkeypatch.setattr(Field, "nvmlReturn", pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver(DeviceGetPowerUsage=650_000, DeviceGetFieldValues=lambda *_: [Field()])
    assert watts(HANDLE) == 650


def test_without_a_driver_there_is_no_state(driver):
    driver(Init=raises(pynvml.NVMLError_LibraryNotFound()))
    for uuid in ("", "0-1"):
        with GpuState(uuid) as state:
            pass
        assert not list(state.measurements({}))
