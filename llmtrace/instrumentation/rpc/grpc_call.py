"""Time one gRPC call from its start to its last message; it stays gRPC's own call.

A call that streams is made an instance of a subclass of its class, sync, or is read through an
iterator as interceptors may give one, asyncio. gRPC reports nothing of connections: the network
phases of such a row are unknown.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from llmtrace.core.error_outcomes import outcome_of_status
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.llm_sdks.responses import copy_identity
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.streams.chunk_timing import Classify, atimed_reads, timed_reads
from llmtrace.runtime.runtime import active

_STATUS: Final = "rpc.response.status_code"
_CANCELLED: Final = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Calls:
    """Which calls of a channel are recorded, and how.

    Attributes:
        classify: notes what a response message reports, and returns its kind.
        done: whether a message is the last; `None` = the status alone says that all have come.
        wanted: whether a method, by its full name, calls a model.
        info: row fields each row carries.
        attributes: of the user's own.
    """

    classify: Classify
    done: Callable[[Any], bool] | None
    wanted: Callable[[str], bool]
    info: Mapping[str, Any]
    attributes: Mapping[str, Any]

    def begin(
        self, details: Any, remade: Callable[[Any, Any], Any], *, stream: bool
    ) -> Call | None:
        """Start recording a call, or join the decorated function that makes it; `None` = leave it.

        Args:
            details: how it is to be made, as an interceptor is given them.
            remade: copies them with other metadata.
            stream: whether its responses stream.
        """
        runtime = active()
        if runtime is None:
            return None
        try:
            name = details.method
            name = name.decode() if isinstance(name, bytes) else name
            if not self.wanted(name):
                return None
            recording, filled = join_call.join(runtime, self.info)
            recording.stream = stream
            recording.attributes.update(
                {"rpc.system.name": "grpc", "rpc.method": name.strip("/"), **self.attributes}
            )
            sent = () if details.metadata is None else tuple(details.metadata)
            already = {key: value for key, value in sent if isinstance(value, str)}
            added = propagation.outgoing(recording, already)
            more = {key.lower(): value for key, value in added.items()}
            kept = (pair for pair in sent if pair[0] not in more)
            details = remade(details, (*kept, *more.items()))
        except Exception as error:  # noqa: BLE001 - the call is made as it would be without us
            internal_error("grpc", error)
            return None
        read = self._until_done(recording) if stream else self.classify
        return Call(recording, filled, details, read)

    def _until_done(self, recording: Recording) -> Classify:
        done, classify = self.done, self.classify
        if done is None:
            return classify
        recording.expects_finish = True

        def read(recording: Recording, message: Any) -> int:
            if done(message):
                recording.expects_finish = False
            return classify(recording, message)

        return read


@dataclass(frozen=True, slots=True)
class Call:
    """One call under way.

    Attributes:
        recording: of its request.
        filled: the fields that it filled in there.
        details: how to make it, our metadata included.
        classify: how its messages are read.
    """

    recording: Recording
    filled: set[str]
    details: Any
    classify: Classify

    def failed(self, error: BaseException) -> None:
        """End with what making the call raised."""
        join_call.failed(self.recording, self.filled, error)

    def unrecorded(self, error: Exception) -> None:
        """Let the call go on by itself, since recording it has failed."""
        internal_error("grpc", error)
        self.recording.finish("success")


# --- sync ----------------------------------------------------------------------------------------


def stream(call: Call, responses: Any) -> Any:
    """Time a call whose responses stream; return it."""
    try:
        call.recording.opened()
        if inspect.isgenerator(responses):  # from another interceptor
            return timed_reads(call.recording, responses.__next__, call.classify)
        vars(responses).update(
            _llmtrace=call.recording,
            _llmtrace_classify=call.classify,
            _llmtrace_finalizer=finalize.StreamFinalizer(call.recording),
        )
        kind: Any = type(responses)
        responses.__class__ = _timed(kind)
    except Exception as error:  # noqa: BLE001
        call.unrecorded(error)
    return responses


@lru_cache(maxsize=16)
def _timed(kind: Any) -> type[Any]:
    """Make the subclass of a sync call that times its reads.

    A subclass and not a proxy: a call is also the exception that reading it raises.
    """

    class Responses(kind):  # type: ignore[misc]
        def __next__(self) -> Any:
            recording = self._llmtrace
            try:
                recording.wait_started = recording.clock()
            except Exception as error:  # noqa: BLE001 - the stream goes on untimed
                internal_error("record", error)
            try:
                message = super().__next__()
            except StopIteration:
                self.__class__ = kind  # nothing is left to time
                _note_metadata(self, recording)
                recording.exhausted()
                raise
            except BaseException as error:
                self.__class__ = kind  # the error is usually the call itself
                _note_metadata(self, recording)
                recording.failed(error)
                raise
            _got(self, recording, message)
            return message

        def next(self) -> Any:
            return self.__next__()

        def cancel(self) -> bool:
            cancelled: bool = super().cancel()
            if cancelled:
                _note_metadata(self, self._llmtrace)
                finalize.closed(self._llmtrace, _CANCELLED)
            return cancelled

    return copy_identity(Responses, kind)


def _got(responses: Any, recording: Recording, message: Any) -> None:
    try:
        recording.switch_interval(reading=False)
        if recording.first_event is None:
            _note(recording, responses.initial_metadata(), ok=True)
        recording.event(responses._llmtrace_classify(recording, message))  # noqa: SLF001 - our own
    except Exception as error:  # noqa: BLE001
        internal_error("record", error)


def unary(call: Call, answer: Any) -> Any:
    """Time a call with one response; return it."""
    recording = call.recording
    try:
        if answer.done():
            _over(call, answer)
        else:  # `stub.Method.future(…)`
            answer.add_done_callback(lambda answered: _over(call, answered))
    except Exception as error:  # noqa: BLE001
        internal_error("grpc", error)
        recording.finish("success")
    return answer


def _over(call: Call, answer: Any) -> None:
    """End the row of a sync call that is over, in any thread."""
    recording = call.recording
    error = None
    try:
        error = answer.exception()
        if error is None:
            call.classify(recording, answer.result())
        _note_metadata(answer, recording)
    except Exception as broken:  # noqa: BLE001 - cancelled: then reading its error raises
        if type(broken).__name__ != "FutureCancelledError":
            internal_error("grpc", broken)
        error = broken if answer.cancelled() else error
    if error is None:
        recording.finish("success")
    elif answer.cancelled():
        recording.finish("cancelled", _CANCELLED)
    else:
        call.failed(error)


# --- asyncio -------------------------------------------------------------------------------------


def astream(call: Call, responses: Any) -> Any:
    """Time a call whose responses stream; return what to read instead of it."""
    recording, classify = call.recording, call.classify
    try:
        recording.opened()

        def read(recording: Recording, message: Any) -> int:
            if recording.first_event is None:
                _note(recording, _at_once(responses.initial_metadata()), ok=True)
            return classify(recording, message)

        def over(ended: Any) -> None:
            _note_metadata_async(ended, recording)
            if ended.cancelled():
                finalize.closed(recording, _CANCELLED)

        responses.add_done_callback(over)
        return atimed_reads(recording, aiter(responses).__anext__, read)
    except Exception as error:  # noqa: BLE001
        call.unrecorded(error)
        return responses


def aunary(call: Call, answer: Any) -> Any:
    """Time a call with one response, until it is awaited; return it."""
    try:
        answer.add_done_callback(partial(_unless_awaited, call.recording))
        vars(answer).update(
            _llmtrace=call, _llmtrace_finalizer=finalize.StreamFinalizer(call.recording)
        )
        kind: Any = type(answer)
        answer.__class__ = _awaited(kind)
    except Exception as error:  # noqa: BLE001
        call.unrecorded(error)
    return answer


@lru_cache(maxsize=16)
def _awaited(kind: Any) -> type[Any]:
    class Answer(kind):  # type: ignore[misc]
        def __await__(self) -> Generator[Any, None, Any]:
            call: Call = self._llmtrace
            try:
                message = yield from super().__await__()
            except BaseException as error:
                _note_error_metadata(error, call.recording)
                call.failed(error)
                raise
            _answered(call, self, message)
            return message

    return copy_identity(Answer, kind)


def _unless_awaited(recording: Recording, answer: Any) -> None:
    """Note how a call ended, in case it is never awaited."""
    _note_metadata_async(answer, recording)
    status = recording.attributes.get(_STATUS)
    if (
        isinstance(status, str)
        and status != "OK"
        and not (recording.ended or recording.in_decorated_function)
    ):
        recording.failure = outcome_of_status(status)


def _answered(call: Call, answer: Any, message: Any) -> None:
    recording = call.recording
    try:
        if not recording.ended:
            call.classify(recording, message)
            _note_metadata_async(answer, recording)
    except Exception as error:  # noqa: BLE001
        internal_error("grpc", error)
    recording.finish("success")


# --- metadata ------------------------------------------------------------------------------------


def _as_it_is(value: Any) -> Any:
    return value


@fails_open("grpc")
def _note_metadata(answer: Any, recording: Recording) -> None:
    """Note a sync call's metadata if it is over: otherwise reading them would wait."""
    if answer.done():
        _ended(recording, answer)


@fails_open("grpc")
def _note_error_metadata(error: BaseException, recording: Recording) -> None:
    """Note the metadata of the asyncio error that a call ended with."""
    if hasattr(error, "trailing_metadata"):
        _ended(recording, error)


@fails_open("grpc")
def _note_metadata_async(answer: Any, recording: Recording) -> None:
    """Note the metadata of an asyncio call that is over."""
    if recording.ended:
        return
    _ended(recording, answer, _at_once)


def _ended(recording: Recording, answer: Any, get: Callable[[Any], Any] = _as_it_is) -> None:
    name = getattr(get(answer.code()), "name", None)
    if isinstance(name, str):
        recording.attributes[_STATUS] = name
    # Without content, an error status makes all of it a failed attempt's time.
    ok = name == "OK" or recording.ttft is not None
    initial, trailing = get(answer.initial_metadata()), get(answer.trailing_metadata())
    _note(recording, (*(initial or ()), *(trailing or ())), ok=ok)


def _note(recording: Recording, metadata: Any, *, ok: bool) -> None:
    """Note what metadata reports of where the time went, as an HTTP response's headers do."""
    raw = [
        (key.encode("latin-1"), value if isinstance(value, bytes) else value.encode())
        for key, value in metadata or ()
    ]
    if raw:
        propagation.answered(recording, raw, ok=ok)


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return a coroutine's result without waiting; `None` if it would have to wait.

    A wait would be a point where the application's task can be cancelled, and lose a message.
    """
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value
    finally:
        coroutine.close()
    return None
