-- PauseQueue makes a queue of kind task or request give nothing to anybody until ResumeQueue;
-- false: it is paused already.
-- name: PauseQueue :one
select lock.pause_queue(kind => sqlc.arg('kind')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), reason => sqlc.arg('reason')::text) as paused;

-- ResumeQueue ends a pause and wakes the queue's idle workers; false: it was not paused.
-- name: ResumeQueue :one
select lock.resume_queue(kind => sqlc.arg('kind')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')) as resumed;
