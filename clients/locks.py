"""Workers, key locks and leases of package locks, with psycopg 3 (3.1 or later).

Copy this file; it wants Python 3.9. Durations are in seconds.
"""
from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Optional, TypeVar, Union

import psycopg
from psycopg.rows import dict_row

T = TypeVar("T")
Key = Union[str, int]
log = logging.getLogger("locks")
now = time.monotonic


class Permanent(Exception):
    """A handler raises it for what no other try can mend: the task becomes a dead letter."""


class Snooze(Exception):
    """A handler raises it to have its task back after delay. That costs the task no try."""

    def __init__(self, delay: float):
        super().__init__(f"again in {delay} s")
        if not 0 <= delay < 1e9:
            raise ValueError(f"a delay is not {delay} s")
        self.delay = delay


class TaskLost(Exception):
    """A task is lost: its time ran out, or somebody else has settled it."""


class TimedOut(Exception):
    """A task was not settled within its timeout, and has no try left."""


class Stopped(Exception):
    """The worker is stopped, and the handler has no time left."""


class Unsettled(Exception):
    """A worker has ended, and could not settle all that its handlers did."""


class LeaseLost(Exception):
    """A lease is lost: stop what it protects."""


class Held(Exception):
    """A key or a lease was not to be had in time."""


@dataclass(eq=False)
class Task:
    id: str
    attempt: int
    tries: int
    retries_left: Optional[int]
    message: Optional[str]
    payload: Any
    queue: str
    # Set when the handler has to end. A handler that is a coroutine is cancelled, too.
    ended: threading.Event = field(default_factory=threading.Event, repr=False)
    reason: Optional[Exception] = field(default=None, repr=False)


@dataclass
class Result:
    task: Task
    outcome: str  # done, retry, dead, snoozed, returned, stale or unknown
    error: Optional[BaseException] = None
    _result: str = "done"
    _delay: Optional[float] = None


class _Pauses:
    """Pauses that grow twofold; those who failed together do not come back together."""

    def __init__(self, shortest: float, longest: float):
        self.shortest, self.longest, self.last = shortest, longest, 0.0

    def next(self) -> float:
        self.last = min(max(2 * self.last, self.shortest), self.longest)
        return self.last * (0.5 + random.random())


_retryable = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_tries = 10  # of what the server asks to do again


class _Line:
    """One connection, which is opened when it is needed, and again when it was lost."""

    def __init__(
        self, conninfo: str, limit: float,
        heard: Optional[Callable[[str, str], None]] = None, lost: Callable[[], None] = lambda: None,
    ):
        self.conninfo, self.limit, self.heard, self.lost = conninfo, limit, heard, lost
        self.connection: Optional[psycopg.AsyncConnection] = None
        self.lock = asyncio.Lock()

    async def query(
        self, text: str, values: Sequence[Any] = (), limit: Optional[float] = None
    ) -> list[dict]:
        """The rows of a statement. One comes after the other."""
        async with self.lock:
            pauses = _Pauses(0.001, 1)
            for attempt in range(1, _tries + 1):
                try:
                    return await self._run(text, values, limit or self.limit)
                except _retryable:
                    if attempt == _tries:
                        raise
                await asyncio.sleep(pauses.next())
        raise AssertionError

    async def _run(self, text: str, values: Sequence[Any], limit: float) -> list[dict]:
        self._watch(False)
        asking = asyncio.ensure_future(self._ask(text, values))
        try:
            await asyncio.wait({asking}, timeout=limit)
            if asking.done():
                return asking.result()
            raise TimeoutError(f"no answer within {limit} s")
        finally:
            if not asking.done():
                self.drop()
                asking.cancel()
                await asyncio.wait({asking}, timeout=1)
            elif self.connection is None or self.connection.closed:
                self.drop()
            else:
                self._watch(True)

    async def _ask(self, text: str, values: Sequence[Any]) -> list[dict]:
        if self.connection is None:
            connection: Any = await psycopg.AsyncConnection.connect(
                self.conninfo, autocommit=True, row_factory=dict_row, prepare_threshold=None)
            if self.heard:
                connection.add_notify_handler(lambda note: self.heard(note.channel, note.payload))
            self.connection = connection
        assert self.connection is not None
        cursor = await self.connection.execute(text, values)
        return await cursor.fetchall() if cursor.description else []  # type: ignore

    def _watch(self, on: bool) -> None:
        """Between two statements nobody else reads what arrives."""
        if not self.heard or not self.connection or self.connection.closed:
            return
        loop, fd = asyncio.get_running_loop(), self.connection.fileno()
        if on:
            loop.add_reader(fd, self._read)
        else:
            loop.remove_reader(fd)

    def _read(self) -> None:
        assert self.connection is not None and self.heard is not None
        pgconn = self.connection.pgconn
        try:
            pgconn.consume_input()
            while note := pgconn.notifies():
                self.heard(note.relname.decode(), note.extra.decode())
        except psycopg.Error:
            self.drop()

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if not connection.closed:
            if self.heard:
                asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.pgconn.finish()  # which waits for nobody
        self.lost()


class _Heartbeat:
    """Keeps what ends by itself after ttl: renews it every third of that.

    It calls lose before anybody else can have it. Without renew it does nothing else.
    """

    def __init__(
        self, ttl: Optional[float], asked: float, lose: Callable[[], None],
        renew: Optional[Callable[[float], Awaitable[bool]]], trouble: Callable[[Exception], None],
    ):
        self.lost, self.lose = False, lose
        self.until = float("inf") if ttl is None else asked + 0.9 * ttl
        self.beating = None
        if ttl is not None:
            self.beating = asyncio.ensure_future(self._beat(ttl, renew, trouble))

    async def _beat(self, ttl, renew, trouble) -> None:
        due = now() + ttl / 3 if renew else self.until
        while True:
            await asyncio.sleep(max(0, min(due, self.until) - now()))
            asked = now()
            if asked >= self.until:
                break
            try:
                limit = min(ttl / 4, 5)
                if not await asyncio.wait_for(renew(limit), self.until - asked):
                    break
                self.until, due = asked + 0.9 * ttl, asked + ttl / 3
            except Exception as error:
                trouble(error)
                due = now() + ttl / 30
        self.lost = True
        self.lose()

    def stop(self) -> bool:
        """Says whether it is lost."""
        if self.beating:
            self.beating.cancel()
        if not self.lost and now() >= self.until:
            self.lost = True
            self.lose()
        return self.lost


_STEP = """
    select id, attempt, status::text, tries, retries_left, message, payload,
        extract(epoch from deadline - clock_timestamp())::float8 as held
    from lock.settle_and_capture(
        %s::text[], %s::bigint[], %s::text[], %s, %s, %s::text[], %s, delays => %s::interval[],
        messages => %s::text[], shortest => %s::interval, longest => %s::interval,
        max_tries => %s, reports => true)"""

_IDLE = """
    select id, attempt, 'in_progress' as status, tries, retries_left, message, payload,
        extract(epoch from deadline - clock_timestamp())::float8 as held, sleep
    from lock.await_task(max => %s, queue_id => %s, statuses => %s::text[], owner => %s,
        max_tries => %s, worker => %s, poll => %s::interval)"""


def _seconds(n: float) -> str:
    return f"{n:.6f} seconds"


def _owner() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _told(error: BaseException) -> str:
    """A text that the server takes, and keeps."""
    text = str(error) or type(error).__name__
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:4000]


def _log_task(result: Result) -> None:
    if result.error:
        log.error(
            "task %s, attempt %s: %s", result.task.id, result.task.attempt, result.outcome,
            exc_info=result.error)


def _log_trouble(error: Exception) -> None:
    log.warning("%s: %s", type(error).__name__, error)


class _Worker:
    def __init__(
        self, conninfo: str, handler: Callable[[Task], Any], *, queue: str = "default",
        concurrency: int = 10, statuses: Sequence[str] = ("new", "failed"),
        max_tries: Optional[int] = 25, shortest_pause: float = 1, longest_pause: float = 3600,
        extend: bool = True, grace: float = 10, call_timeout: float = 10, poll: float = 30,
        blind: float = 1, listen: Union[str, bool] = True, owner: Optional[str] = None,
        stop: Optional[threading.Event] = None,
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
        on_settled: Callable[[Result], Any] = _log_task,
        on_trouble: Callable[[Exception], Any] = _log_trouble,
    ):
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}")
        self.handler, self.queue, self.concurrency = handler, queue, concurrency
        self.statuses, self.max_tries, self.extend = list(statuses), max_tries, extend
        self.pauses = [_seconds(shortest_pause), _seconds(longest_pause)]
        self.grace, self.poll, self.blind = grace, poll, blind
        self.owner, self.stop, self.signals = owner or _owner(), stop, signals
        self.on_settled, self.on_trouble = on_settled, on_trouble
        self.name = f"{self.owner} {uuid.uuid4()}"
        self.running: dict[Task, asyncio.Future] = {}
        self.handling: set[asyncio.Future] = set()
        self.finished: list[Result] = []  # not settled yet
        self.woken = asyncio.Event()
        self.ends: Optional[float] = None  # when the worker has to
        self.ending = False  # handlers have no time left
        self.proof: Optional[str] = None
        self.proven = self.deaf = False  # notifications arrive; the server has none
        self.calls, self.beats = _Line(conninfo, call_timeout), _Line(conninfo, call_timeout)
        self.ears = None
        if listen:
            where = conninfo if listen is True else listen
            self.ears = _Line(where, call_timeout, self.heard, self.unheard)

    def hook(self, call: Callable[[Any], Any], value: Any) -> None:
        try:
            answer = call(value)
            if inspect.isawaitable(answer):
                asyncio.ensure_future(answer)
        except Exception:
            log.exception("a hook")

    def trouble(self, error: Exception) -> None:
        self.hook(self.on_trouble, error)

    def heard(self, channel: str, payload: str) -> None:
        if channel == "lock_task" and payload == self.queue:
            self.woken.set()
        elif channel == "lock_trial" and payload == self.proof:
            self.proven = True
            self.woken.set()

    def unheard(self) -> None:
        self.proof, self.proven = None, False
        self.woken.set()

    async def hear(self) -> None:
        # Behind a pooler LISTEN succeeds, and nothing ever arrives. So a notification of our own,
        # by way of another connection, has to arrive before others are relied on.
        if not self.ears or self.deaf:
            return
        try:
            await self.ears.query("listen lock_task")
            if self.proof:
                return
            await self.ears.query("listen lock_trial")
            self.proof = str(uuid.uuid4())
            await self.calls.query("select pg_notify('lock_trial', %s)", [self.proof])
        except Exception as error:
            self.proof = None
            self.deaf = isinstance(error, psycopg.errors.FeatureNotSupported)
            self.trouble(error)  # it polls

    def task_of(self, row: dict) -> Task:
        return Task(
            row["id"], row["attempt"], row["tries"], row["retries_left"], row["message"],
            row["payload"], self.queue)

    def start(self, row: dict, asked: float) -> None:
        task = self.task_of(row)
        if self.ends is not None:  # since the call began
            self.finished.append(Result(task, "returned", _result="new"))
            return
        if inspect.iscoroutinefunction(self.handler):
            body = asyncio.ensure_future(self.handler(task))
        else:
            body = asyncio.get_running_loop().run_in_executor(self.threads, self.handler, task)
        self.running[task] = body
        handling = asyncio.ensure_future(self.handle(task, body, row["held"], asked))
        self.handling.add(handling)
        handling.add_done_callback(self.handling.discard)

    def end(self, task: Task, reason: Exception) -> None:
        task.reason = task.reason or reason
        task.ended.set()
        if isinstance(self.running[task], asyncio.Task):
            self.running[task].cancel()

    async def handle(
        self, task: Task, body: asyncio.Future, held: Optional[float], asked: float
    ) -> None:
        async def renew(limit: float) -> bool:
            return len(await self.beats.query(
                "select * from lock.extend_tasks(array[%s], array[%s::bigint], %s::interval, %s)",
                [task.id, task.attempt, _seconds(held or 0), self.queue], limit)) == 1

        beat = _Heartbeat(
            held, asked, lambda: self.end(task, self.lost(task)), renew if self.extend else None,
            self.trouble)
        await asyncio.wait({body})
        error = task.reason if body.cancelled() else body.exception()
        beat.stop()
        result = Result(task, "done")
        if body.cancelled() or error:
            result = Result(task, "retry", error, "retry")
            if isinstance(error, Permanent):
                result = Result(task, "dead", error, "dead")
            elif isinstance(error, Snooze):
                result = Result(task, "snoozed", None, "new", error.delay)
            elif self.ending:
                result = Result(task, "returned", error, "new")
        del self.running[task]
        self.finished.append(result)
        self.woken.set()

    def lost(self, task: Task) -> TaskLost:
        return TaskLost(f"task {task.id}, attempt {task.attempt}, is lost")

    async def look(self, most: int) -> list[dict]:
        """One call: settles what is finished, tells of it, and captures."""
        batch: dict[str, Result] = {}  # an id that was lost, and is back, can be there twice
        for result in self.finished:
            batch.setdefault(result.task.id, result)
        if not batch and not most:
            return []
        settled = list(batch.values())
        rows = await self.calls.query(_STEP, [
            list(batch), [r.task.attempt for r in settled], [r._result for r in settled], most,
            self.queue, self.statuses, self.owner,
            [None if r._delay is None else _seconds(r._delay) for r in settled],
            [_told(r.error) if r.error else None for r in settled], *self.pauses, self.max_tries])
        self.finished = [r for r in self.finished if batch.get(r.task.id) is not r]
        captured, reports = [], {}
        for row in rows:
            given = batch.get(row["id"])
            if row["status"] == "in_progress" and (
                    given is None or given.task.attempt != row["attempt"]):
                captured.append(row)
            else:
                reports[row["id"]] = row
        for result in settled:
            report = reports.pop(result.task.id, None)
            if report and report["status"] == "in_progress":
                result.outcome = "stale"
                result.error = result.error or self.lost(result.task)
            elif report and result.outcome == "retry" and report["retries_left"] == 0:
                result.outcome = "dead"
            self.hook(self.on_settled, result)
        for row in reports.values():
            self.hook(self.on_settled, Result(self.task_of(row), "dead", TimedOut(row["message"])))
        return captured

    def begin_end(self) -> None:
        if self.ends is None:
            self.ends = now() + self.grace
            self.woken.set()
            asyncio.get_running_loop().call_later(0.9 * self.grace, self.end_all)

    def end_all(self) -> None:
        self.ending = True
        for task in list(self.running):
            self.end(task, Stopped("the worker is stopped"))

    async def watch_stop(self) -> None:
        while self.stop and not self.stop.is_set():
            await asyncio.sleep(0.1)
        self.begin_end()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self.threads = ThreadPoolExecutor(self.concurrency, "locks")
        for number in self.signals:
            loop.add_signal_handler(number, self.begin_end)
        watching = asyncio.ensure_future(self.watch_stop()) if self.stop else None
        try:
            await self.loop()
        finally:
            for number in self.signals:
                loop.remove_signal_handler(number)
            if watching:
                watching.cancel()
            for line in (self.calls, self.beats, self.ears):
                if line:
                    line.drop()
            self.threads.shutdown(wait=False)
        if self.finished:
            for result in self.finished:
                result.outcome = "unknown"
                self.hook(self.on_settled, result)
            raise Unsettled(f"{len(self.finished)} tasks of queue {self.queue} are not settled")

    async def loop(self) -> None:
        pauses = _Pauses(0.1, 10)
        while self.ends is None or self.running or self.finished:
            self.woken.clear()
            pause = None
            try:
                most = self.concurrency - len(self.running) if self.ends is None else 0
                asked = now()
                rows = await self.look(most)
                if not rows and most and self.ends is None:
                    await self.hear()
                    asked = now()
                    rows = await self.calls.query(_IDLE, [
                        most, self.queue, self.statuses, self.owner, self.max_tries, self.name,
                        _seconds(self.poll if self.proven else min(self.poll, self.blind))])
                    pause = rows[0]["sleep"]
                    rows = [row for row in rows if row["id"] is not None]
                for row in rows:
                    self.start(row, asked)
                if rows and len(self.running) < self.concurrency:
                    continue  # there may be more
                pauses.last = 0
            except Exception as error:
                self.trouble(error)
                if self.ends is not None and not self.running and now() > self.ends:
                    break
                pause = pauses.next()
            if self.ends is None or self.running or self.finished and pause:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.woken.wait(), pause)
        with contextlib.suppress(Exception):
            await self.calls.query(
                "select lock.stop_idling('lock_task', %s, %s)", [self.queue, self.name], 1)


async def work_async(conninfo: str, handler: Callable[[Task], Any], **options: Any) -> None:
    """Works on the tasks of a queue until a signal of the process, or the event stop, ends it.

    A handler that is a coroutine function runs in this loop, and any other in a thread. Raises
    Unsettled.
    """
    await _Worker(conninfo, handler, **options).run()


def work(conninfo: str, handler: Callable[[Task], Any], **options: Any) -> None:
    """The same, for programs without a loop. Outside the main thread pass signals=()."""
    asyncio.run(work_async(conninfo, handler, **options))


def _locking(name: str, key: Key, wait: Optional[float]) -> tuple[str, list]:
    kind = "text" if isinstance(key, str) else "bigint"
    if wait is None:
        return f"select lock.{name}(%s::{kind}) is not null as held", [key]
    return f"select lock.try_{name}(%s::{kind}, %s::interval) as held", [key, _seconds(wait)]


_BEGIN = "set transaction isolation level read committed"


def transaction(connection: psycopg.Connection, fn: Callable[[], T]) -> T:
    """Runs fn in a transaction, and all of it again when the server asks for that."""
    pauses = _Pauses(0.001, 1)
    for attempt in range(1, _tries + 1):
        try:
            with connection.transaction():
                connection.execute(_BEGIN)
                return fn()
        except _retryable:
            if attempt == _tries:
                raise
        time.sleep(pauses.next())
    raise AssertionError


async def transaction_async(
    connection: psycopg.AsyncConnection, fn: Callable[[], Awaitable[T]]
) -> T:
    pauses = _Pauses(0.001, 1)
    for attempt in range(1, _tries + 1):
        try:
            async with connection.transaction():
                await connection.execute(_BEGIN)
                return await fn()
        except _retryable:
            if attempt == _tries:
                raise
        await asyncio.sleep(pauses.next())
    raise AssertionError


def _held(row: Any, key: Key, wait: Optional[float]) -> None:
    if wait is not None and not row[0]:
        raise Held(f"key {key} is held")


def exclusive(
    connection: psycopg.Connection, key: Key, fn: Callable[[], T], *,
    wait: Optional[float] = None, shared: bool = False,
) -> T:
    """Runs fn in a transaction that has the key: alone, or beside others that share it.

    With wait it raises Held after that.
    """
    def locked() -> T:
        cursor = psycopg.Cursor(connection)
        cursor.execute(*_locking("shared" if shared else "exclusive", key, wait))
        _held(cursor.fetchone(), key, wait)
        return fn()
    return transaction(connection, locked)


async def exclusive_async(
    connection: psycopg.AsyncConnection, key: Key, fn: Callable[[], Awaitable[T]], *,
    wait: Optional[float] = None, shared: bool = False,
) -> T:
    async def locked() -> T:
        cursor = psycopg.AsyncCursor(connection)
        await cursor.execute(*_locking("shared" if shared else "exclusive", key, wait))
        _held(await cursor.fetchone(), key, wait)
        return await fn()
    return await transaction_async(connection, locked)


@dataclass
class Lease:
    name: str
    token: int
    lost: threading.Event  # set when the lease is lost

    def fence(self, connection: Any) -> Any:
        """Fences connection's transaction: LK001 when the lease is lost. Await it if that is."""
        return connection.execute("select lock.assert_lease(%s, %s)", [self.name, self.token])


@contextlib.asynccontextmanager
async def lease_async(
    conninfo: str, name: str, ttl: float, *, wait: float = 0, permits: int = 1,
    owner: Optional[str] = None, call_timeout: float = 10,
    on_trouble: Callable[[Exception], Any] = _log_trouble,
) -> AsyncIterator[Lease]:
    """Holds a lease, which is renewed until the block ends. A block that loses it is cancelled.

    Raises Held when it was not to be had within wait, and LeaseLost when it was lost.
    """
    woken = asyncio.Event()

    def heard(_: str, payload: str) -> None:
        if payload == name:
            woken.set()

    line, until = _Line(conninfo, call_timeout, heard), now() + wait
    try:
        while True:
            if wait > 0:
                await line.query("listen lock_lease")
            woken.clear()
            asked = now()
            [row] = await line.query(
                """select token, extract(epoch from expires_in)::float8 as pause
                from lock.await_lease(%s, %s, %s::interval, %s)""",
                [name, owner or _owner(), _seconds(ttl), permits])
            if row["token"]:
                break
            if now() >= until:
                raise Held(f"lease {name} is held")
            with contextlib.suppress(asyncio.TimeoutError):
                # Where notifications do not arrive, it asks every second.
                pause = max(min(row["pause"], 1, until - now()), 0.001)
                await asyncio.wait_for(woken.wait(), pause)
        lease = Lease(name, row["token"], threading.Event())
        block = asyncio.current_task()

        def lose() -> None:
            lease.lost.set()
            if block:
                block.cancel()

        async def renew(limit: float) -> bool:
            [row] = await line.query(
                "select lock.renew_lease(%s, %s, %s::interval) as held",
                [name, lease.token, _seconds(ttl)], limit)
            return row["held"]

        beat = _Heartbeat(ttl, asked, lose, renew, on_trouble)
        try:
            yield lease
        except asyncio.CancelledError:
            if not beat.lost:
                raise
            if hasattr(block, "uncancel"):
                block.uncancel()
        finally:
            block = None
            beat.stop()
            try:
                [row] = await line.query(
                    "select lock.release_lease(%s, %s) as back", [name, lease.token],
                    min(call_timeout, ttl))
                beat.lost = beat.lost or not row["back"]
            except Exception as error:
                on_trouble(error)  # it ends by itself
        if beat.lost:
            raise LeaseLost(f"lease {name} is lost")
    finally:
        line.drop()


@contextlib.contextmanager
def lease(conninfo: str, name: str, ttl: float, **options: Any) -> Iterator[Lease]:
    """The same, for programs without a loop. The block looks at lost, and is not cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(step: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(step, loop).result()

    try:
        holding = lease_async(conninfo, name, ttl, **options)
        held = call(holding.__aenter__())
        try:
            yield held
        except BaseException as error:
            call(holding.__aexit__(type(error), error, error.__traceback__))
            raise
        call(holding.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
