// Workers, key locks and leases of package locks, with node-postgres (npm install pg).
//
// Copy this file; it wants Node 20.
//
// Durations are in milliseconds. A connection is what pg.Client takes: an address, or an object.
import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import pg from 'pg'

/** A handler throws it for what no other try can mend: the task becomes a dead letter. */
export class Permanent extends Error {}

/** A handler throws it to have its task back after delay. That costs the task no try. */
export class Snooze extends Error {
  constructor (delay) {
    super(`again in ${delay} ms`)
    if (!(delay >= 0 && delay < 1e12)) throw new RangeError(`a delay is not ${delay} ms`)
    this.delay = delay
  }
}

/** A task is lost: its time ran out, or somebody else has settled it. */
export class TaskLost extends Error {}

/** A task was not settled within its timeout, and has no try left. */
export class TimedOut extends Error {}

/** A worker has ended, and could not settle all that its handlers did. */
export class Unsettled extends Error {}

/** A lease is lost: stop what it protects. */
export class LeaseLost extends Error {}

/** A key or a lease was not to be had in time. */
export class Held extends Error {}

const longestTimer = 1e9 // setTimeout cannot count much further
const now = () => performance.now()
const milliseconds = n => `${n} milliseconds`

/** Sleeps, at most until wake has something to say. */
function sleep (ms, wake) {
  return new Promise(resolve => {
    const timer = setTimeout(resolve, Math.min(ms, longestTimer))
    wake?.(() => { clearTimeout(timer); resolve() })
  })
}

/** Pauses that grow twofold; those who failed together do not come back together. */
class Pauses {
  constructor (shortest, longest) { Object.assign(this, { shortest, longest, last: 0 }) }

  next () {
    this.last = Math.min(Math.max(2 * this.last, this.shortest), this.longest)
    return this.last * (0.5 + Math.random())
  }
}

const retryable = err => err?.code === '40001' || err?.code === '40P01'

/** Runs attempt again while the server asks for that, ten times at most. */
async function again (attempt) {
  const pauses = new Pauses(1, 1000)
  for (let n = 1; ; n++) {
    try {
      return await attempt()
    } catch (err) {
      if (!retryable(err) || n === 10) throw err
      await sleep(pauses.next())
    }
  }
}

/** One connection, which is opened when it is needed, and again when it was lost. */
class Line {
  constructor (connection, limit, { heard, lost } = {}) {
    this.config = typeof connection === 'string' ? { connectionString: connection } : connection
    Object.assign(this, { limit, heard, lost, client: null, last: Promise.resolve() })
  }

  /** The rows of a statement. One comes after the other. */
  query (text, values, limit = this.limit) {
    const answer = this.last.then(() => again(() => this.run(text, values, limit)))
    this.last = answer.catch(() => {})
    return answer
  }

  async run (text, values, limit) {
    let late
    const timer = new Promise((resolve, reject) => {
      late = setTimeout(() => reject(new Error(`no answer within ${limit} ms`)), limit)
    })
    try {
      return await Promise.race([this.ask(text, values), timer])
    } catch (err) {
      if (!(err instanceof pg.DatabaseError)) this.drop(this.client)
      throw err
    } finally {
      clearTimeout(late)
    }
  }

  async ask (text, values) {
    if (!this.client) {
      const client = this.client = new pg.Client({ keepAlive: true, ...this.config })
      client.on('error', () => this.drop(client))
      client.on('end', () => this.drop(client))
      client.on('notification', note => this.heard?.(note))
      try {
        await client.connect()
      } catch (err) {
        this.drop(client)
        throw err
      }
    }
    return (await this.client.query(text, values)).rows
  }

  drop (client) {
    if (!client || this.client !== client) return
    this.client = null
    client.connection.stream.destroy() // end would wait for who no longer answers
    this.lost?.()
  }

  async close () {
    const client = this.client
    if (!client) return
    this.client = null
    await Promise.race([client.end(), sleep(1000)])
    client.connection.stream.destroy()
  }
}

/**
 * Keeps what ends by itself after ttl: renews it every third of that. Its signal ends before
 * anybody else can have it. Without renew it only ends the signal in time.
 */
class Heartbeat {
  constructor (ttl, asked, lost, renew, trouble) {
    Object.assign(this, { ttl, lost, renew, trouble, controller: new AbortController() })
    if (ttl === null) return
    this.until = asked + 0.9 * ttl
    this.watch()
    if (renew) this.plan(ttl / 3)
  }

  get signal () { return this.controller.signal }

  watch () {
    clearTimeout(this.alarm)
    const left = this.until - now()
    if (left <= 0) this.lose()
    else this.alarm = setTimeout(() => this.watch(), Math.min(left, longestTimer))
  }

  plan (pause) { this.timer = setTimeout(() => this.beat(), Math.min(pause, longestTimer)) }

  async beat () {
    const asked = now()
    let pause = this.ttl / 3
    try {
      if (!await this.renew(Math.min(this.ttl / 4, 5000))) this.lose()
      if (this.over) return
      this.until = asked + 0.9 * this.ttl
      this.watch()
    } catch (err) {
      if (this.over) return
      this.trouble(err)
      pause = this.ttl / 30
    }
    this.plan(pause - (now() - asked))
  }

  lose () {
    if (this.over) return
    this.isLost = true
    this.end()
    this.controller.abort(this.lost())
  }

  end () {
    this.over = true
    clearTimeout(this.timer)
    clearTimeout(this.alarm)
  }

  /** Says whether it is lost. */
  stop () {
    if (now() >= this.until) this.lose()
    this.end()
    return this.isLost === true
  }
}

const columns = `id, attempt::text, status::text, tries, retries_left, message, payload,
  extract(epoch from deadline - clock_timestamp())::float8 * 1000 as held,
  extract(epoch from available_at)::float8 * 1000 as available`

const step = `select ${columns} from lock.settle_and_capture(
  $1::text[], $2::bigint[], $3::text[], $4, $5, $6::text[], $7, delays => $8::interval[],
  messages => $9::text[], shortest => $10::interval, longest => $11::interval,
  max_tries => $12, reports => true)`

const idle = `select id, attempt::text, 'in_progress' as status, tries, retries_left, message,
  payload, extract(epoch from deadline - clock_timestamp())::float8 * 1000 as held,
  sleep * 1000 as sleep
  from lock.await_task(max => $1, queue_id => $2, statuses => $3::text[], owner => $4,
    max_tries => $5, worker => $6, poll => $7::interval)`

// A text that the server takes, and keeps.
const told = err => String(err?.message || err).replaceAll('\0', '').toWellFormed().slice(0, 4000)

function logTask ({ task, outcome, error }) {
  if (error) console.error(`locks: task ${task.id}, attempt ${task.attempt}: ${outcome}:`, error)
}

/** Works on the tasks of a queue until it is stopped by a signal of the process, or by stop. */
export async function work (connection, handler, {
  queue = 'default', concurrency = 10, statuses = ['new', 'failed'], maxTries = 25,
  shortestPause = 1000, longestPause = 3600_000, extend = true, grace = 10_000,
  callTimeout = 10_000, poll = 30_000, blind = 1000, listen = connection,
  owner = `${hostname()} ${process.pid}`, stop, signals = ['SIGTERM', 'SIGINT'],
  onSettled = logTask, onTrouble = err => console.error(`locks: queue ${queue}:`, err)
} = {}) {
  if (!(concurrency >= 1)) throw new RangeError(`concurrency is ${concurrency}`)
  const worker = `${owner} ${randomUUID()}`
  const running = new Set() // tasks with a handler
  const pauses = new Pauses(100, 10_000)
  const ending = new AbortController() // of the handlers
  let finished = [] // not settled yet
  let woken = false
  let rouse = () => {}
  let ends = null // when the worker has to
  let proven = false // notifications arrive
  let proof = null
  let deaf = false
  const wake = () => { woken = true; rouse() }
  const hook = (call, ...values) => {
    Promise.resolve().then(() => call(...values)).catch(err => console.error('locks: a hook:', err))
  }
  const trouble = err => hook(onTrouble, err)
  const calls = new Line(connection, callTimeout)
  const beats = new Line(connection, callTimeout)
  const ears = listen && new Line(listen, callTimeout, {
    heard ({ channel, payload }) {
      if (channel === 'lock_task' && payload === queue) wake()
      if (channel === 'lock_trial' && payload === proof) { proven = true; wake() }
    },
    lost () { proof = null; proven = false; wake() }
  })

  // Behind a pooler LISTEN succeeds, and nothing ever arrives. So a notification of our own, by way
  // of another connection, has to arrive before others are relied on.
  async function hear () {
    if (!ears || deaf) return
    try {
      await ears.query('listen lock_task')
      if (proof) return
      await ears.query('listen lock_trial')
      proof = randomUUID()
      await calls.query("select pg_notify('lock_trial', $1)", [proof])
    } catch (err) {
      proof = null
      deaf = err.code === '0A000' // this server has no notifications
      trouble(err) // it polls
    }
  }

  const taskOf = row => ({
    id: row.id, attempt: row.attempt, tries: row.tries, retriesLeft: row.retries_left,
    message: row.message, payload: row.payload, queue
  })

  function start (row, asked) {
    const task = taskOf(row)
    if (ends !== null) { // since the call began
      finished.push({ task, result: 'new', outcome: 'returned', delay: null })
    } else {
      running.add(task)
      handle(task, row.held, asked)
    }
  }

  async function handle (task, held, asked) {
    const beat = new Heartbeat(held, asked,
      () => new TaskLost(`task ${task.id}, attempt ${task.attempt}, is lost`),
      extend && (async limit => (await beats.query(
        'select * from lock.extend_tasks(array[$1], array[$2::bigint], $3::interval, $4)',
        [task.id, task.attempt, milliseconds(held), queue], limit)).length === 1),
      trouble)
    const result = { task, result: 'done', outcome: 'done', delay: null }
    try {
      await handler(task, AbortSignal.any([beat.signal, ending.signal]))
    } catch (error) {
      Object.assign(result, { result: 'retry', outcome: 'retry', error })
      if (error instanceof Permanent) result.result = result.outcome = 'dead'
      if (error instanceof Snooze) {
        Object.assign(result, { result: 'new', outcome: 'snoozed', delay: error.delay })
        delete result.error
      } else if (ending.signal.aborted && !(error instanceof Permanent)) {
        Object.assign(result, { result: 'new', outcome: 'returned' })
      }
    }
    beat.stop()
    running.delete(task)
    finished.push(result)
    wake()
  }

  // One call: settles what is finished, tells of it, and captures as much as there is room for.
  async function look (max) {
    const ids = new Set() // an id that was lost, and is back, can be there twice
    const batch = finished.filter(({ task }) => !ids.has(task.id) && ids.add(task.id))
    if (batch.length === 0 && max === 0) return []
    const rows = await calls.query(step, [
      batch.map(r => r.task.id), batch.map(r => r.task.attempt), batch.map(r => r.result), max,
      queue, statuses, owner, batch.map(r => r.delay === null ? null : milliseconds(r.delay)),
      batch.map(r => r.error ? told(r.error) : null), milliseconds(shortestPause),
      milliseconds(longestPause), maxTries
    ])
    finished = finished.filter(result => !batch.includes(result))
    const reports = new Map()
    const attempts = new Map(batch.map(({ task }) => [task.id, task.attempt]))
    const captured = rows.filter(row => {
      if (row.status === 'in_progress' && attempts.get(row.id) !== row.attempt) return true
      reports.set(row.id, row)
      return false
    })
    for (const { task, outcome, error } of batch) {
      const row = reports.get(task.id)
      const result = { task, outcome, error }
      if (row?.status === 'in_progress') {
        result.outcome = 'stale'
        result.error ??= new TaskLost(`task ${task.id}, attempt ${task.attempt}, is lost`)
      } else if (outcome === 'retry' && row?.retries_left === 0) {
        result.outcome = 'dead'
      } else if (outcome === 'retry' || outcome === 'snoozed') {
        result.retryAt = row && new Date(row.available)
      }
      reports.delete(task.id)
      hook(onSettled, result)
    }
    for (const row of reports.values()) {
      hook(onSettled, { task: taskOf(row), outcome: 'dead', error: new TimedOut(row.message) })
    }
    return captured
  }

  let graceful
  const begin = () => {
    if (ends !== null) return
    ends = now() + grace
    graceful = setTimeout(
      () => ending.abort(new Error('the worker is stopped')), Math.min(0.9 * grace, longestTimer))
    wake()
  }
  for (const name of signals) process.on(name, begin)
  stop?.addEventListener('abort', begin)
  if (stop?.aborted) begin()
  try {
    for (;;) {
      if (ends !== null && running.size === 0 && finished.length === 0) break
      let pause = longestTimer
      woken = false
      try {
        const max = ends === null ? concurrency - running.size : 0
        let asked = now()
        let rows = await look(max)
        if (rows.length === 0 && max > 0 && ends === null) {
          await hear()
          asked = now()
          rows = await calls.query(idle, [max, queue, statuses, owner, maxTries, worker,
            milliseconds(proven ? poll : Math.min(poll, blind))])
          pause = rows[0].sleep ?? pause
          rows = rows.filter(row => row.id !== null)
        }
        for (const row of rows) start(row, asked)
        if (rows.length > 0 && running.size < concurrency) continue // there may be more
        pauses.last = 0
      } catch (err) {
        trouble(err)
        if (ends !== null && running.size === 0 && now() > ends) break
        await sleep(pauses.next(), end => { rouse = end })
        continue
      }
      const over = ends !== null && running.size === 0
      if (!woken && !over && pause > 0) await sleep(pause, end => { rouse = end })
    }
    await calls.query('select lock.stop_idling($1, $2, $3)', ['lock_task', queue, worker], 1000)
      .catch(trouble)
  } finally {
    clearTimeout(graceful)
    for (const name of signals) process.off(name, begin)
    stop?.removeEventListener('abort', begin)
    await Promise.all([calls, beats, ears].map(line => line && line.close()))
  }
  if (finished.length === 0) return
  for (const { task, error } of finished) hook(onSettled, { task, outcome: 'unknown', error })
  throw new Unsettled(`${finished.length} tasks of queue ${queue} are not settled`)
}

/** Runs fn(client) in a transaction, and all of it again when the server asks for that. */
export function transaction (pool, fn) {
  return again(async () => {
    const client = await pool.connect()
    let broken
    const gone = err => { broken = err } // without a listener the process would end
    client.on('error', gone)
    try {
      await client.query('begin isolation level read committed')
      const answer = await fn(client)
      await client.query('commit')
      return answer
    } catch (err) {
      await client.query('rollback').catch(gone)
      throw err
    } finally {
      client.off('error', gone)
      client.release(broken)
    }
  })
}

function keyed (name, pool, key, fn, wait) {
  const type = typeof key === 'string' ? 'text' : 'bigint'
  return transaction(pool, async client => {
    if (wait === undefined) {
      await client.query(`select lock.${name}($1::${type})`, [key])
    } else {
      const { rows } = await client.query(
        `select lock.try_${name}($1::${type}, $2::interval) as held`, [key, milliseconds(wait)])
      if (!rows[0].held) throw new Held(`key ${key} is held`)
    }
    return fn(client)
  })
}

/** Runs fn(client) in a transaction that alone has the key. With wait it throws Held after that. */
export const exclusive = (pool, key, fn, { wait } = {}) => keyed('exclusive', pool, key, fn, wait)

/** The same, beside others that share the key. */
export const shared = (pool, key, fn, { wait } = {}) => keyed('shared', pool, key, fn, wait)

/**
 * Runs fn(lease) under a lease, which is renewed until fn has returned. lease.signal ends when it
 * is lost, and lease.assert(client) fences a transaction. Throws Held when it was not to be had
 * within wait (0), and LeaseLost when it was lost before fn was done.
 */
export async function withLease (connection, name, ttl, fn, {
  wait = 0, permits = 1, owner = `${hostname()} ${process.pid}`, callTimeout = 10_000,
  onTrouble = err => console.error(`locks: lease ${name}:`, err)
} = {}) {
  let rouse = () => {}
  const line = new Line(connection, callTimeout, {
    heard: ({ payload }) => { if (payload === name) rouse() }
  })
  const until = now() + wait
  try {
    let row, asked
    for (;;) {
      if (wait > 0) await line.query('listen lock_lease')
      asked = now()
      ;[row] = await line.query(`select token::text, extract(epoch from expires_in)::float8 * 1000
        as pause from lock.await_lease($1, $2, $3::interval, $4)`,
      [name, owner, milliseconds(ttl), permits])
      if (row.token !== '0') break
      if (now() >= until) throw new Held(`lease ${name} is held`)
      // Where notifications do not arrive, it asks every second.
      await sleep(Math.max(Math.min(row.pause, 1000, until - now()), 1), end => { rouse = end })
    }
    const { token } = row
    const beat = new Heartbeat(ttl, asked, () => new LeaseLost(`lease ${name} is lost`),
      async limit => (await line.query('select lock.renew_lease($1, $2, $3::interval) as held',
        [name, token, milliseconds(ttl)], limit))[0].held, onTrouble)
    const assert = client => client.query('select lock.assert_lease($1, $2)', [name, token])
    let kept = false
    try {
      const answer = await fn({ name, token, signal: beat.signal, assert })
      kept = !beat.stop()
      if (!kept) throw beat.signal.reason
      return answer
    } finally {
      beat.stop()
      const [given] = await line.query('select lock.release_lease($1, $2) as back', [name, token],
        Math.min(callTimeout, ttl)).catch(err => [onTrouble(err)]) // then it ends by itself
      if (kept && given?.back === false) throw new LeaseLost(`lease ${name} is lost`)
    }
  } finally {
    await line.close()
  }
}
