# A worker of the queue "default": python3 worker.py postgres://user@host/database
import os, select, signal, sys
import psycopg2, psycopg2.extras

def work(task):  # Yours. What it raises is kept, and the task is tried again later.
    if (task["payload"] or {}).get("fail"):
        raise RuntimeError(task["payload"]["fail"])
    print(task["id"], task["attempt"], flush=True)

stopping, (stopped, stop) = False, os.pipe()
def on_signal(*_):
    global stopping
    stopping = True
os.set_blocking(stop, False)
signal.set_wakeup_fd(stop)
signal.signal(signal.SIGTERM, on_signal)

connection = psycopg2.connect(sys.argv[1])
connection.autocommit = True
cursor = connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor)
cursor.execute("listen lock_task")
settle = []  # id, attempt, result and message of each task of the last batch
while True:
    connection.notifies.clear()
    columns = [[task[n] for task in settle] for n in range(4)]
    cursor.execute("""select * from lock.await_task(
        %s::text[], %s::bigint[], %s::text[], messages => %s::text[], max => %s)""",
        (*columns, 0 if stopping else 1))
    rows, settle = cursor.fetchall(), []
    if stopping and not rows:
        break
    for task in rows:
        if task["id"] is not None:
            try:
                work(task)
                settle.append((task["id"], task["attempt"], "done", None))
            except Exception as error:
                settle.append((task["id"], task["attempt"], "retry", str(error)))
    connection.poll()
    if not connection.notifies and not stopping and rows[0]["sleep"] > 0:
        select.select([connection, stopped], [], [], rows[0]["sleep"])
        connection.poll()
