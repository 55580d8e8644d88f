// Three tasks with node-postgres: npm install pg; node tasks.js DSN exclusive | throttle | work
const { Client } = require('pg')

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

// Runs work in a transaction, and all of it again when the server asks for that.
// Its answer counts after the commit.
async function transaction (client, work) {
  for (let attempt = 1; ; attempt++) {
    try {
      await client.query('begin isolation level read committed')
      const answer = await work()
      await client.query('commit')
      return answer
    } catch (err) {
      await client.query('rollback').catch(() => {}) // the connection may be gone
      if (!['40001', '40P01'].includes(err.code) || attempt === 10) throw err
      await sleep(Math.random() * 2 ** attempt)
    }
  }
}

// One at a time: the lock ends with the transaction. Lock in one statement, and read in the next.
async function exclusive (client) {
  const n = await transaction(client, async () => {
    await client.query('select lock.exclusive($1::text)', ['counter'])
    const { rows } = await client.query('select n from counter')
    await client.query('update counter set n = $1', [rows[0].n + 1])
    return rows[0].n + 1
  })
  console.log(n)
}

// Once per interval: the grant is committed before the work begins.
async function throttle (client) {
  const granted = await transaction(client, async () => {
    const { rows } = await client.query(
      'select lock.lock_throttled_resource($1, $2) as granted', ['rebuild', 'host 1'])
    return rows[0].granted
  })
  console.log(granted ? 'granted' : 'denied')
}

async function print (task) { // Yours. What it throws is kept, and the task is tried again later.
  if (task.payload?.fail) throw new Error(task.payload.fail)
}

// Captures, works, settles. When this program dies, the task's timeout gives the task to another.
async function work (client) {
  for (;;) {
    const captured = await transaction(client, () =>
      client.query('select id, attempt, payload from lock.capture(10, $1)', ['print']))
    if (captured.rows.length === 0) return
    for (const task of captured.rows) {
      const failure = await print(task).then(() => null, err => String(err))
      const settled = await transaction(client, () => client.query(
        "select lock.set_status($1, $2, $3, 'print', delay => $4, message => $5) as mine",
        [task.id, failure === null ? 'done' : 'failed', task.attempt,
          failure === null ? '0' : '10 seconds', failure]))
      console.log(task.id, settled.rows[0].mine ? 'settled' : 'lost: somebody else has it')
    }
  }
}

async function main () {
  const client = new Client(process.argv[2])
  await client.connect()
  await { exclusive, throttle, work }[process.argv[3]](client)
  await client.end()
}

main().catch(err => { console.error(err); process.exit(1) })
