// A worker of the queue "default": npm install pg; node worker.js postgres://user@host/database
const { Client } = require('pg')

async function work(task) { // Yours. What it throws is kept, and the task is tried again later.
  if (task.payload?.fail) throw new Error(task.payload.fail)
  console.log(`${task.id} ${task.attempt}`)
}

async function main() {
  const client = new Client(process.argv[2])
  let stopping = false, told = false, wake = () => {}
  client.on('notification', () => { told = true; wake() })
  process.on('SIGTERM', () => { stopping = true; wake() })
  await client.connect()
  await client.query('listen lock_task')
  let settle = [[], [], [], []] // ids, attempts, results and messages of the last batch
  for (;;) {
    told = false
    const { rows } = await client.query(
      'select * from lock.await_task($1, $2, $3, max => $5, messages => $4)',
      [...settle, stopping ? 0 : 1])
    if (stopping && rows.length === 0) return client.end()
    settle = [[], [], [], []]
    for (const task of rows.filter(row => row.id !== null)) {
      const [result, message] = await work(task)
        .then(() => ['done', null], err => ['retry', String(err)])
      const settled = [task.id, task.attempt, result, message]
      settled.forEach((value, n) => settle[n].push(value))
    }
    if (!told && !stopping && rows[0].sleep > 0) await new Promise(done => {
      const timer = setTimeout(done, rows[0].sleep * 1000)
      wake = () => { clearTimeout(timer); done() }
    })
  }
}

main()
