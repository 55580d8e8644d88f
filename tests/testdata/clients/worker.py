# A worker whose handlers do what the payload says: worker.py DSN OPTIONS [async]
import asyncio, json, sys, time
from locks import Permanent, Snooze, work

def say(*words):  # in one piece: threads share the output
    sys.stdout.write(" ".join(map(str, words)) + "\n")

given = json.loads(sys.argv[2])
options = {name: given[name] for name in ("concurrency", "listen") if name in given}
for name, option in {"grace": "grace", "call": "call_timeout", "poll": "poll", "blind": "blind",
                     "shortest": "shortest_pause"}.items():
    if name in given:
        options[option] = given[name] / 1000

def judge(task):
    if task.payload.get("snooze") and task.attempt == 1:
        raise Snooze(task.payload["snooze"] / 1000)
    if "permanent" in task.payload:
        raise Permanent(task.payload["permanent"])
    if "fail" in task.payload:
        raise RuntimeError(task.payload["fail"])
    say("ended", task.id, task.attempt)

def begin(task):
    say("began", task.id, task.attempt)
    first = task.payload.get("first") and task.attempt != 1
    return 0 if first else task.payload.get("ms", 0) / 1000

def handle(task):
    pause = begin(task)
    if task.payload.get("deaf"):
        time.sleep(pause)
    elif task.ended.wait(pause):
        raise task.reason
    judge(task)

async def handle_async(task):
    pause = begin(task)
    until = time.monotonic() + pause
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            if not task.payload.get("deaf"):
                raise
    judge(task)

def settled(result):
    say("settled", result.task.id, result.task.attempt, result.outcome)

try:
    work(sys.argv[1], handle_async if sys.argv[3:] else handle, on_settled=settled,
         on_trouble=lambda error: say("trouble", repr(error)),
         extend="no_extend" not in given, **options)
    say("over")
except Exception as error:
    say("over", type(error).__name__)
