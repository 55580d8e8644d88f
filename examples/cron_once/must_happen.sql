-- The hour's report as a task. Every host runs this from cron: psql "$DSN" -f must_happen.sql
-- The first one creates the task, the others get false. If no host runs, no task is made.
select lock.create_task(
    'report ' || to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD HH24'),
    queue_id => 'reports',
    timeout => '10 minutes'  -- a worker that dies keeps the task for so long
);
