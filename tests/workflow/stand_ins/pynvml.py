"""The driver of a machine with the GPUs that STAND_IN_GPUS names, as far as it is asked before anything is measured."""

import os


class NVMLError(Exception):
    """The error that the real module raises."""


def nvmlInit(): ...


def nvmlShutdown(): ...


def names():
    return os.environ["STAND_IN_GPUS"].split(",")


def nvmlDeviceGetCount():
    return len(names())


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle}00000"


def nvmlDeviceGetHandleByUUID(uuid):
    raise NVMLError("Not Found")


def nvmlDeviceGetName(handle):
    return names()[handle]


def nvmlDeviceGetMemoryInfo(handle):
    return type("Memory", (), {"total": 141 * 2**30 + handle})


def nvmlSystemGetDriverVersion():
    return "580.1"


NVML_NVLINK_MAX_LINKS = 18


def nvmlDeviceGetNvLinkState(handle, link):
    if "H200" not in nvmlDeviceGetName(handle) or link > 3:
        raise NVMLError("Not Supported")
    return int(link < 2)


def nvmlDeviceGetMaxPcieLinkGeneration(handle):
    return 4


def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return 16
