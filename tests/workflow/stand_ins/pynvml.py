"""The driver of a machine with STAND_IN_GPUS H200s, as far as the project asks it before anything is measured."""

import os


class NVMLError(Exception):
    """The error that the real module raises."""


def nvmlInit(): ...


def nvmlShutdown(): ...


def nvmlDeviceGetCount():
    return int(os.environ["STAND_IN_GPUS"])


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle}00000"


def nvmlDeviceGetHandleByUUID(uuid):
    raise NVMLError("Not Found")


def nvmlDeviceGetName(handle):
    return "NVIDIA H200"


def nvmlDeviceGetMemoryInfo(handle):
    return type("Memory", (), {"total": 141 * 2**30})


def nvmlSystemGetDriverVersion():
    return "580.1"
