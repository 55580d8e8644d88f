// Key locks and leases: node helpers.mjs DSN
import pg from 'pg'
import { Held, LeaseLost, exclusive, shared, withLease } from './locks.mjs'

const say = (...words) => console.log(words.join(' '))
const address = process.argv[2]
const pool = new pg.Pool({ connectionString: address })
const name = err => say(err.constructor.name)
const count = () => exclusive(pool, 'counter', async client => {
  const { rows } = await client.query('select n from counter')
  await client.query('update counter set n = $1', [rows[0].n + 1])
})
await Promise.all(Array.from({ length: 20 }, count))
await exclusive(pool, 7, () => exclusive(pool, 7, () => say('both'), { wait: 10 })).catch(name)
await shared(pool, 7, () => shared(pool, 7, () => say('both'), { wait: 10 })).catch(name)
let waiting
await withLease(address, 'turn', 1000, async lease => {
  await withLease(address, 'turn', 1000, () => say('both')).catch(name)
  waiting = withLease(address, 'turn', 1000, () => say('next'), { wait: 20_000 })
  await new Promise(resolve => setTimeout(resolve, 2000)) // two ttls
  await exclusive(pool, 'write', client => lease.assert(client))
  say('kept', lease.signal.aborted)
})
await waiting
say('handed on')
await withLease(address, 'lost', 900, async lease => {
  await pool.query('select lock.release_lease($1, $2)', ['lost', lease.token])
  await new Promise(resolve => lease.signal.addEventListener('abort', resolve))
  await exclusive(pool, 'write', client => lease.assert(client)).catch(err => say(err.code))
  throw lease.signal.reason
}).catch(err => say(err instanceof LeaseLost, err instanceof Held))
await pool.end()
