// node worker.mjs URL migrate: makes the schema.
// node worker.mjs URL CONCURRENCY QUEUE_SIZE: works until stdin ends, and writes what each job that starts carries as "sent".
import { Logger, run, runMigrations } from "graphile-worker";

const [url, concurrency, size] = process.argv.slice(2);
const logger = new Logger(() => () => {});

if (concurrency === "migrate") {
  await runMigrations({ connectionString: url, logger });
  process.exit(0);
}

let sent = [];
const noop = (payload) => {
  if (sent.length === 0) {
    setImmediate(() => {
      process.stdout.write(sent.join("\n") + "\n");
      sent = [];
    });
  }
  sent.push(payload.sent ?? 0);
};

// What its documentation gives as its fastest configuration.
const worker = {
  connectionString: url,
  concurrentJobs: Number(concurrency),
  maxPoolSize: 25,
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
if (Number(size) > 0) {
  worker.localQueue = { size: Number(size) };
}
const runner = await run({ preset: { worker }, logger, noHandleSignals: true, taskList: { noop } });
process.stdin.on("end", async () => {
  await runner.stop();
  process.exit(0);
});
process.stdin.resume();
await runner.promise;
