"""Are GPUs read in base units, and does what a driver refuses stay unknown?

The driver is made up, of what one of an H200 answered where it says so.
"""

# ruff: noqa: N802, N815, D102 - the names are the driver's

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmtrace.core.errors import SourceError
from llmtrace_collector.scrape.gpu import REASONS, GpuReader


class NVMLError(Exception):
    """As pynvml's: its value says which."""

    def __init__(self, value: int = 3) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Driver:
    """A driver with one GPU that is too hot, as pynvml would show it."""

    NVMLError = NVMLError
    NVML_SUCCESS, NVML_ERROR_TIMEOUT = 0, 10
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVML_FI_DEV_MEMORY_TEMP = 82
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, refused: frozenset[str] = frozenset(), xids: tuple[int, ...] = ()) -> None:
        self.refused, self.xids = refused, list(xids)
        self.running = self.freed = 0
        self.seen = threading.Event()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvmlDevice") and name in object.__getattribute__(self, "refused"):
            return self._refuse
        return object.__getattribute__(self, name)

    def _refuse(self, *_: Any) -> None:
        raise NVMLError

    def nvmlInit(self) -> None:
        self.running += 1

    def nvmlShutdown(self) -> None:
        self.running -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetUUID(self, _: str) -> str:
        return "GPU-a"

    def nvmlDeviceGetName(self, _: str) -> bytes:
        return b"H100"

    def nvmlDeviceGetUtilizationRates(self, _: str) -> Any:
        return SimpleNamespace(gpu=97, memory=50)

    nvmlMemory_v2 = 33554472

    def nvmlDeviceGetMemoryInfo(self, _: str, version: int | None = None) -> Any:
        if version is None:
            return SimpleNamespace(total=80 << 30, used=60 << 30, free=20 << 30)
        return SimpleNamespace(total=80 << 30, used=59 << 30, reserved=1 << 30, free=20 << 30)

    def nvmlDeviceGetClockInfo(self, _: str, kind: int) -> int:
        return {1: 1200, 2: 2619}[kind]

    def nvmlDeviceGetMaxClockInfo(self, _: str, _kind: int) -> int:
        return 1980

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:
        return 512_500

    def nvmlDeviceGetEnforcedPowerLimit(self, _: str) -> int:
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, _: str) -> int:
        return 9_000

    def nvmlDeviceGetTemperature(self, _: str, _sensor: int) -> int:
        return 91

    def nvmlDeviceGetFieldValues(self, _: str, fields: list[int]) -> list[Any]:
        assert fields == [82]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=95))]

    def nvmlDeviceGetTotalEccErrors(self, *_: Any) -> int:
        return 0

    def nvmlDeviceGetPcieReplayCounter(self, _: str) -> int:
        return 4

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: str) -> int:
        return 0x1 | 0x4 | 0x40

    def nvmlDeviceGetViolationStatus(self, _: str, policy: int) -> Any:
        return SimpleNamespace(referenceTime=1, violationTime={0: 2_500_000_000, 1: 0}[policy])

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, _: str, kind: int, events: str) -> None:
        assert (kind, events) == (8, "events")

    def nvmlEventSetWait_v2(self, _: str, ms: int) -> Any:
        assert ms > 0
        if self.xids:
            return SimpleNamespace(device="handle 0", eventData=self.xids.pop(0))
        self.seen.set()
        threading.Event().wait(0.01)
        raise NVMLError(10)

    def nvmlEventSetFree(self, _: str) -> None:
        self.freed += 1


LABELS = (("engine", "nvml"), ("gpu", "0"), ("uuid", "GPU-a"), ("model", "H100"))


def values(driver: Driver) -> dict[str, float]:
    """Return each signal's value, with its own label."""
    with GpuReader(driver) as reader:
        assert driver.seen.wait(30) or driver.refused
        measured = reader.read()
    found = {}
    for one in measured:
        own = dict(one.labels).get(one.signal.label or "")
        assert one.labels[:4] == LABELS
        assert isinstance(one.value, float)
        found[one.signal.name + (f"/{own}" if own else "")] = one.value
    return found


class AnH200(Driver):
    """What driver 580.159.04 answered of an idle H200, of which it keeps 615 MiB for itself."""

    NVML_PERF_POLICY_LOW_UTILIZATION = 4

    def nvmlDeviceGetMemoryInfo(self, _: str, version: int | None = None) -> Any:
        used = 644_939_776 if version is None else 0
        return SimpleNamespace(total=150_754_820_096, used=used, free=150_109_880_320)

    def nvmlDeviceGetViolationStatus(self, _: str, policy: int) -> Any:
        return SimpleNamespace(referenceTime=1, violationTime={4: 30_560_000_000}.get(policy, 0))


def test_an_idle_gpu_is_neither_throttled_nor_in_use():
    """Its counter of low utilization grows all the while, and its driver holds some memory."""
    found = values(AnH200())

    assert found["gpu_memory_used"] == 0
    assert sum(found[name] for name in found if name.startswith("gpu_throttle_time")) == 0


def test_memory_of_a_driver_that_knows_its_first_version_only():
    """What it reserves is in there, as in what older tools show."""

    class Old(Driver):
        def nvmlDeviceGetMemoryInfo(self, _: str, version: int | None = None) -> Any:
            if version is not None:
                raise NVMLError
            return SimpleNamespace(total=80 << 30, used=60 << 30, free=20 << 30)

    assert values(Old())["gpu_memory_used"] == 60 << 30


def test_a_gpu_in_base_units():
    """Bytes, hertz, watts, joules and shares of one."""
    found = {name: value for name, value in values(Driver()).items() if "thr" not in name}

    assert found == pytest.approx(
        {
            "gpu_utilization": 0.97,
            "gpu_memory_used": 59 << 30,
            "gpu_memory_free": 20 << 30,
            "gpu_memory_total": 80 << 30,
            "gpu_sm_clock": 1.2e9,
            "gpu_memory_clock": 2.619e9,
            "gpu_sm_clock_max": 1.98e9,
            "gpu_power": 512.5,
            "gpu_power_limit": 700,
            "gpu_energy": 9,
            "gpu_temperature": 91,
            "gpu_memory_temperature": 95,
            "gpu_ecc_uncorrected": 0,
            "gpu_pcie_replays": 4,
        }
    )


def test_what_holds_its_clocks_down():
    """Each reason is there, 1 or 0; being idle is none."""
    found = values(Driver())

    held = {reason for reason in REASONS.values() if found[f"gpu_throttled/{reason}"] == 1}
    assert held == {"power_cap", "hw_thermal"}
    assert found["gpu_throttle_time/power"] == pytest.approx(2.5)
    assert found["gpu_throttle_time/thermal"] == 0


def test_xid_errors_are_counted_as_they_happen():
    """By their number; none is a 0 that needs no search."""
    driver = Driver(xids=(79, 31, 79))
    found = values(driver)

    assert {name: value for name, value in found.items() if "xid" in name} == {
        "gpu_xid_errors/79": 2,
        "gpu_xid_errors/31": 1,
    }
    assert driver.freed == 1
    assert driver.running == 0


CALLS = sorted(name for name in vars(Driver) if name.startswith("nvmlDeviceGet"))
NAMING = {
    "nvmlDeviceGetCount", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetHandleByIndex"
}  # fmt: skip


@pytest.mark.parametrize("call", [call for call in CALLS if call not in NAMING])
def test_what_a_driver_refuses_is_unknown_and_the_rest_is_not(call):
    """MIG, virtual and consumer GPUs refuse one thing or another."""
    everything = values(Driver())
    driver = Driver(frozenset({call}))
    found = values(driver)

    assert set(found) < set(everything)
    assert all(found[name] == everything[name] for name in found)


def test_a_gpu_that_refuses_everything():
    """There is nothing to report, and nothing breaks."""
    driver = Driver(frozenset({*CALLS, "nvmlDeviceRegisterEvents"}) - {"nvmlDeviceGetCount"})
    with GpuReader(driver) as reader:
        assert reader.read() == ()
        assert reader.refused["nvmlDeviceGetHandleByIndex"] == 1
    assert driver.running == 0


def test_an_older_driver():
    """Calls that came later have predecessors."""

    class Old(Driver):
        nvmlDeviceGetCurrentClocksEventReasons = property()  # type: ignore[assignment]

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: str) -> int:
            return 0x20

    assert values(Old())["gpu_throttled/sw_thermal"] == 1


def test_no_driver():
    """A machine without one says so at set-up."""

    class Bare(Driver):
        def nvmlInit(self) -> None:
            raise NVMLError(9)

    with pytest.raises(SourceError, match=r"no GPU of NVIDIA's can be read here: error 9"):
        GpuReader(Bare())


def test_the_names_are_those_of_the_real_binding():
    """Everything the reader asks for, the installed nvidia-ml-py has."""
    import pynvml

    asked = [name for name in vars(Driver) if name.startswith(("nvml", "NVML_"))]
    assert [name for name in asked if not hasattr(pynvml, name)] == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver here")
def test_a_machine_without_gpus():
    """The real binding finds no driver, and that is reported."""
    with pytest.raises(SourceError, match="no GPU of NVIDIA's can be read here"):
        GpuReader()
