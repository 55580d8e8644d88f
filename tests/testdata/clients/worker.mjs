// A worker whose handlers do what the payload says: node worker.mjs DSN [options as JSON]
import { Permanent, Snooze, work } from './locks.mjs'

const say = (...words) => console.log(words.join(' '))
const { call, no_extend: noExtend, shortest, ...options } = JSON.parse(process.argv[3])
if (call) options.callTimeout = call
if (shortest) options.shortestPause = shortest

async function handle ({ id, attempt, payload }, signal) {
  say('began', id, attempt)
  if (payload.first && attempt !== '1') payload.ms = 0
  await new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, payload.ms ?? 0)
    if (payload.deaf) return
    signal.addEventListener('abort', () => { clearTimeout(timer); reject(signal.reason) })
  })
  if (payload.snooze && attempt === '1') throw new Snooze(payload.snooze)
  if (payload.permanent) throw new Permanent(payload.permanent)
  if (payload.fail) throw new Error(payload.fail)
  say('ended', id, attempt)
}

try {
  await work(process.argv[2], handle, {
    ...options,
    extend: !noExtend,
    onSettled: ({ task, outcome }) => say('settled', task.id, task.attempt, outcome),
    onTrouble: err => say('trouble', err)
  })
  say('over')
} catch (err) {
  say('over', err.constructor.name)
}
