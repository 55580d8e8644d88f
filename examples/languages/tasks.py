# Three tasks with psycopg 3: python3 tasks.py DSN exclusive | throttle | work
import random, sys, time
import psycopg
from psycopg.rows import dict_row

def transaction(connection, work):
    """Runs work in a transaction, and all of it again when the server asks for that."""
    for attempt in range(1, 11):
        try:
            with connection.transaction():
                answer = work()
            return answer  # counts after the commit
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            if attempt == 10:
                raise
            time.sleep(random.random() * 2**attempt / 1000)

def exclusive(connection):
    """One at a time, until the transaction ends. Lock in one statement, and read in the next."""
    def count():
        connection.execute("select lock.exclusive(%s::text)", ["counter"])
        n = connection.execute("select n from counter").fetchone()["n"] + 1
        connection.execute("update counter set n = %s", [n])
        return n
    print(transaction(connection, count))

def throttle(connection):
    """Once per interval: the grant is committed before the work begins."""
    granted = transaction(connection, lambda: connection.execute(
        "select lock.lock_throttled_resource(%s, %s) as granted",
        ["rebuild", "host 1"]).fetchone()["granted"])
    print("granted" if granted else "denied")

def handle(task):  # Yours. What it raises is kept, and the task is tried again later.
    if (task["payload"] or {}).get("fail"):
        raise RuntimeError(task["payload"]["fail"])

def work(connection):
    """Captures, works, settles. If this dies, the task's timeout gives the task to another."""
    while tasks := transaction(connection, lambda: connection.execute(
            "select id, attempt, payload from lock.capture(10, %s)", ["print"]).fetchall()):
        for task in tasks:
            status, delay, message = "done", "0", None
            try:
                handle(task)
            except Exception as error:
                status, delay, message = "failed", "10 seconds", str(error)
            mine = transaction(connection, lambda: connection.execute(
                "select lock.set_status(%s, %s, %s, 'print', delay => %s, message => %s) as mine",
                [task["id"], status, task["attempt"], delay, message]).fetchone()["mine"])
            print(task["id"], "settled" if mine else "lost: somebody else has it")

with psycopg.connect(sys.argv[1], autocommit=True, row_factory=dict_row) as connection:
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    {"exclusive": exclusive, "throttle": throttle, "work": work}[sys.argv[2]](connection)
