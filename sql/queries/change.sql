-- TrackChanges records every change of a table from now on as an update request of the entity that
-- a column names, in a queue ("": changes). Target is the table's name as SQL writes it. Run it as
-- the table's owner.
-- name: TrackChanges :exec
select lock.track_changes(
    target => sqlc.arg('target')::text::regclass, entity_column => sqlc.arg('entity_column')::text::name,
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'changes')
);

-- UntrackChanges stops that.
-- name: UntrackChanges :exec
select lock.untrack_changes(target => sqlc.arg('target')::text::regclass);
