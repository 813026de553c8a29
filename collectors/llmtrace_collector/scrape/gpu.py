"""Read what this machine's GPUs do, and why their clocks are throttled.

Read from NVIDIA's driver through nvidia-ml-py, as the same signals that dcgm-exporter's page
gives. The driver may refuse any single call (MIG, virtual or consumer GPUs): what is refused is
not reported.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Self

from llmtrace.core.errors import SourceError, needs_extra
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import Labels, Measured

# Why clocks are throttled, by the bit of the driver's mask.
REASONS: Final[Mapping[int, str]] = {
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
# For how long they were, by the driver's name of the policy. Low utilization is not one of them:
# its counter grows on an idle GPU, whose clocks nothing throttles.
_POLICIES: Final[Mapping[str, str]] = {
    "NVML_PERF_POLICY_POWER": "power",
    "NVML_PERF_POLICY_THERMAL": "thermal",
    "NVML_PERF_POLICY_SYNC_BOOST": "sync_boost",
    "NVML_PERF_POLICY_BOARD_LIMIT": "board_limit",
    "NVML_PERF_POLICY_RELIABILITY": "reliability",
}
_XID_WAIT_MS: Final = 1_000
_MAX_XIDS: Final = 256  # error numbers counted separately; a driver knows about a hundred


class GpuReader:
    """Reads the GPUs of this machine; a context manager.

    Args:
        nvml: the module `pynvml`, or a test's replacement for it.

    Raises:
        ConfigError: nvidia-ml-py is not installed.
        SourceError: there is no NVIDIA driver.
    """

    def __init__(self, nvml: Any = None) -> None:
        if nvml is None:
            with needs_extra("reading GPUs", "collector", "nvidia-ml-py"):
                nvml = import_module("pynvml")
        self._nvml = nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise SourceError(f"no GPU of NVIDIA's can be read here: {error}") from error
        self.refused: Counter[str] = Counter()
        self._xids: Counter[tuple[Labels, str]] = Counter()
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        try:
            self._gpus = tuple(self._find())
            self._watch_xids()
        except BaseException:
            nvml.nvmlShutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    @property
    def count(self) -> int:
        """The number of GPUs that are read."""
        return len(self._gpus)

    def read(self) -> tuple[Measured, ...]:
        """Return what every GPU is doing now. What the driver refuses is counted in `refused`."""
        measured = []
        for handle, labels in self._gpus:
            measured += [
                Measured(SIGNALS[name], labels, float(value))
                for name, value in self._values(handle)
                if value is not None
            ]
            measured += [
                Measured(SIGNALS[name], (*labels, ("reason", reason)), value)
                for name, reason, value in self._throttling(handle)
            ]
        measured += [
            Measured(SIGNALS["gpu_xid_errors"], (*labels, ("xid", xid)), float(count))
            for (labels, xid), count in tuple(self._xids.items())
        ]
        return tuple(measured)

    def _find(self) -> Iterator[tuple[Any, Labels]]:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._try("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue  # lost, or not ours to read
            labels = [("engine", "nvml"), ("gpu", str(index))]
            for label, call in (("uuid", "nvmlDeviceGetUUID"), ("model", "nvmlDeviceGetName")):
                text = self._try(call, handle)
                if text:
                    # Old bindings answer in bytes.
                    labels.append((label, text.decode() if isinstance(text, bytes) else text))
            yield handle, tuple(labels)

    def _values(self, handle: Any) -> Iterator[tuple[str, float | None]]:
        nvml = self._nvml
        used = self._try("nvmlDeviceGetUtilizationRates", handle)
        yield "gpu_utilization", None if used is None else used.gpu / 100
        memory = self._memory(handle)
        if memory is not None:
            yield "gpu_memory_used", memory.used
            yield "gpu_memory_free", memory.free
            yield "gpu_memory_total", memory.total
        clock = "nvmlDeviceGetClockInfo"
        yield "gpu_sm_clock", _times(1e6, self._try(clock, handle, nvml.NVML_CLOCK_SM))
        yield "gpu_memory_clock", _times(1e6, self._try(clock, handle, nvml.NVML_CLOCK_MEM))
        most = self._try("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
        yield "gpu_sm_clock_max", _times(1e6, most)
        yield "gpu_power", _times(1e-3, self._try("nvmlDeviceGetPowerUsage", handle))
        limit = self._try("nvmlDeviceGetEnforcedPowerLimit", handle)
        yield "gpu_power_limit", _times(1e-3, limit)
        yield "gpu_energy", _times(1e-3, self._try("nvmlDeviceGetTotalEnergyConsumption", handle))
        # The new call replaces the old one, which drivers of some GPUs no longer answer.
        calls = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        yield "gpu_temperature", self._first(calls, handle, nvml.NVML_TEMPERATURE_GPU)
        yield "gpu_memory_temperature", self._field(handle, "NVML_FI_DEV_MEMORY_TEMP")
        yield (
            "gpu_ecc_uncorrected",
            self._try(
                "nvmlDeviceGetTotalEccErrors",
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
        )
        yield "gpu_pcie_replays", self._try("nvmlDeviceGetPcieReplayCounter", handle)

    def _memory(self, handle: Any) -> Any:
        """Return the memory, by the call's second version: the first counts reserved as used."""
        second = getattr(self._nvml, "nvmlMemory_v2", None)
        info = "nvmlDeviceGetMemoryInfo"
        found = None if second is None else self._try(info, handle, second)
        return found or self._try(info, handle)

    def _field(self, handle: Any, name: str) -> float | None:
        field = getattr(self._nvml, name, None)
        found = None if field is None else self._try("nvmlDeviceGetFieldValues", handle, [field])
        if not found or found[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return float(found[0].value.uiVal)

    def _throttling(self, handle: Any) -> Iterator[tuple[str, str, float]]:
        calls = (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",  # its name before driver 535
        )
        mask = self._first(calls, handle)
        if mask is not None:
            for bit, reason in REASONS.items():
                yield "gpu_throttled", reason, 1.0 if mask & bit else 0.0
        for policy, reason in _POLICIES.items():
            number = getattr(self._nvml, policy, None)
            if number is not None:
                status = self._try("nvmlDeviceGetViolationStatus", handle, number)
                if status is not None:
                    yield "gpu_throttle_time", reason, status.violationTime * 1e-9

    def _watch_xids(self) -> None:
        """Count XID errors as they happen, in a thread: the driver's call for them blocks."""
        nvml = self._nvml
        events = self._try("nvmlEventSetCreate")
        if events is None:
            return
        watched = {}
        for handle, labels in self._gpus:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                self.refused["nvmlDeviceRegisterEvents"] += 1
            else:
                watched[dict(labels).get("uuid", "")] = labels
        if not watched:
            self._try("nvmlEventSetFree", events)
            return
        self._watcher = threading.Thread(
            target=self._wait_for_xids, args=(events, watched), name="llmtrace-xid", daemon=True
        )
        self._watcher.start()

    def _wait_for_xids(self, events: Any, watched: Mapping[str, Labels]) -> None:
        nvml = self._nvml
        wait = nvml.nvmlEventSetWait_v2
        while not self._closing.is_set():
            try:
                event = wait(events, _XID_WAIT_MS)
            except nvml.NVMLError as error:
                if getattr(error, "value", None) == nvml.NVML_ERROR_TIMEOUT:
                    continue
                self.refused["nvmlEventSetWait"] += 1
                break
            uuid = self._try("nvmlDeviceGetUUID", event.device)
            labels = watched.get(uuid.decode() if isinstance(uuid, bytes) else uuid or "")
            key = (labels or (("engine", "nvml"),), str(event.eventData))
            if key in self._xids or len(self._xids) < _MAX_XIDS:
                self._xids[key] += 1
        self._try("nvmlEventSetFree", events)

    def _first(self, calls: Sequence[str], *arguments: Any) -> Any:
        """Return the first answer to calls that do the same; `None` = the driver has none."""
        there = (call for call in calls if hasattr(self._nvml, call))
        answers = (self._try(call, *arguments) for call in there)
        return next((answer for answer in answers if answer is not None), None)

    def _try(self, call: str, *arguments: Any) -> Any:
        """Call the driver; `None` = it refuses, or does not support the call."""
        nvml = self._nvml
        try:
            return getattr(nvml, call)(*arguments)
        except nvml.NVMLError:
            self.refused[call] += 1
            return None


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else value * factor
