# Key locks and leases: helpers.py DSN [async]
import asyncio, sys, threading, time
import psycopg
from locks import (Held, LeaseLost, exclusive, exclusive_async, lease, lease_async)

address = sys.argv[1]

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")

def connect():
    return psycopg.connect(address, autocommit=True)

def count():
    with connect() as connection:
        def add():
            n = connection.execute("select n from counter").fetchone()[0]
            connection.execute("update counter set n = %s", [n + 1])
        exclusive(connection, "counter", add)

def keys(shared):
    with connect() as one, connect() as two:
        try:
            exclusive(one, 7, lambda: exclusive(two, 7, lambda: say("both"), wait=0.01, shared=shared),
                      shared=shared)
        except Held:
            say("Held")

def wait_for_turn():
    with lease(address, "turn", 1, wait=20):
        say("next")

def main():
    counters = [threading.Thread(target=count) for _ in range(20)]
    for thread in counters:
        thread.start()
    for thread in counters:
        thread.join()
    keys(False)
    keys(True)
    with connect() as connection:
        with lease(address, "turn", 1) as held:
            try:
                with lease(address, "turn", 1):
                    say("both")
            except Held:
                say("Held")
            waiting = threading.Thread(target=wait_for_turn)
            waiting.start()
            time.sleep(2)  # two ttls
            exclusive(connection, "write", lambda: held.fence(connection))
            say("kept", str(held.lost.is_set()).lower())
        waiting.join()
        say("handed on")
        try:
            with lease(address, "lost", 0.9) as held:
                connection.execute("select lock.release_lease('lost', %s)", [held.token])
                held.lost.wait()
                try:
                    exclusive(connection, "write", lambda: held.fence(connection))
                except psycopg.Error as error:
                    say(error.sqlstate)
        except (LeaseLost, Held) as error:
            say(str(isinstance(error, LeaseLost)).lower(), str(isinstance(error, Held)).lower())

async def count_async():
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        async def add():
            [n] = await (await connection.execute("select n from counter")).fetchone()
            await connection.execute("update counter set n = %s", [n + 1])
        await exclusive_async(connection, "counter", add)

async def keys_async(shared):
    connect = psycopg.AsyncConnection.connect
    async with await connect(address, autocommit=True) as one:
        async with await connect(address, autocommit=True) as two:
            async def both():
                say("both")
            async def inner():
                await exclusive_async(two, 7, both, wait=0.01, shared=shared)
            try:
                await exclusive_async(one, 7, inner, shared=shared)
            except Held:
                say("Held")

async def wait_for_turn_async():
    async with lease_async(address, "turn", 1, wait=20):
        say("next")

async def main_async():
    await asyncio.gather(*[count_async() for _ in range(20)])
    await keys_async(False)
    await keys_async(True)
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        async with lease_async(address, "turn", 1) as held:
            try:
                async with lease_async(address, "turn", 1):
                    say("both")
            except Held:
                say("Held")
            waiting = asyncio.ensure_future(wait_for_turn_async())
            await asyncio.sleep(2)  # two ttls
            await exclusive_async(connection, "write", lambda: held.fence(connection))
            say("kept", str(held.lost.is_set()).lower())
        await waiting
        say("handed on")
        try:
            async with lease_async(address, "lost", 0.9) as held:
                await connection.execute("select lock.release_lease('lost', %s)", [held.token])
                try:
                    await asyncio.sleep(3600)
                finally:
                    try:
                        await exclusive_async(connection, "write", lambda: held.fence(connection))
                    except psycopg.Error as error:
                        say(error.sqlstate)
        except (LeaseLost, Held) as error:
            say(str(isinstance(error, LeaseLost)).lower(), str(isinstance(error, Held)).lower())

if sys.argv[2:]:
    asyncio.run(main_async())
else:
    main()
