package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	slow      = time.Minute // how long something may wait in a queue before the first page says so
	fresh     = time.Minute // how long an answer of lock.check() counts: it reads lock.task to its end
	atATime   = 50          // queues on a page
	allAtOnce = 200         // queues that the first page looks at
)

// A node is a session in the tree of those who wait for each other.
type node struct {
	Parts  []cell
	Query  string
	Behind []*node
	since  time.Time
}

// wrong is the first page: what is wrong, and nothing else. Who is in the way comes first, as that may be why the rest cannot be read.
func wrong(v *view) error {
	v.Title = "What is wrong"
	if _, err := v.tx.Exec(v.ctx, "set local statement_timeout = '2s'"); err != nil {
		return err
	}
	for _, part := range []struct {
		heading string
		look    func(*view) error
	}{{inTheWay, blockers}, {"Tables that are locked", lockers}, {"Leases", endangered}, {"Queues", troubled}} {
		if err := v.part(part.heading, part.look); err != nil {
			return err
		}
	}
	return nil
}

// last is what the first page has from lock.check(). No transaction is open then: the pool may have one connection.
func (v *view) last() error {
	shown := len(v.Sections)
	findings, err := v.h.check(v.ctx)
	if err == nil {
		v.found(findings)
	}
	if err := v.without(server, shown, err); err != nil {
		return err
	}
	v.Healthy = !slices.ContainsFunc(v.Sections, func(s section) bool { return s.Heading != notices })
	return nil
}

// lockers are the sessions that hold, or wait for, a lock on a whole table of schema lock that keeps others from writing or reading.
func lockers(v *view) error {
	found, err := v.rows(`
		select class.relname::text as name, held.mode, held.granted, session.pid, session.usename::text as owner, session.application_name as application, session.state,
			session.xact_start as since, array_to_string(pg_blocking_pids(held.pid), ' ') as blocked_by, left(session.query, 300) as query,
			(select count(*) from pg_locks as waiter where waiter.database = held.database and waiter.relation = held.relation and not waiter.granted) as waiters
		from pg_locks as held
		join pg_class as class on class.oid = held.relation
		join pg_namespace as namespace on namespace.oid = class.relnamespace and namespace.nspname = 'lock'
		left join pg_stat_activity as session on session.pid = held.pid
		where held.locktype = 'relation'
		  and held.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
		  and held.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
		order by held.granted desc, session.xact_start, held.pid, class.relname
		limit 51`)
	if err != nil || len(found) == 0 {
		return err
	}
	t := &table{Columns: []string{"Table", "State", "Session", "Role", "Program", "Session is", "Transaction began", "Behind sessions", "Waiters", "What it runs"}}
	for _, row := range found[:min(len(found), perPage)] {
		cells := lists(row, "name", "granted", "pid", "owner", "application", "state", "since", "blocked_by", "waiters", "query")
		cells[1] = cell{Text: "holds " + text(row["mode"]), Mark: "bad"}
		if row["granted"] == false {
			cells[1] = cell{Text: "waits for " + text(row["mode"]), Mark: "warn"}
		}
		t.Rows = append(t.Rows, cells)
	}
	v.add(section{Heading: "Tables that are locked", Table: t, Note: "Until these transactions end, others cannot write there, or (AccessExclusiveLock) not even read."})
	return nil
}

// blockers are the sessions that wait for nobody, and who waits behind them.
func blockers(v *view) error {
	found, err := v.rows(`
		select kind, name, key::text as key, mode, pid, owner, application, since, left(query, 300) as query, array_to_string(blocked_by, ' ') as blocked_by,
			root_pid, root_owner, root_application, root_state, root_since, left(root_query, 300) as root_query
		from lock.blocked
		order by since, pid
		limit 501`)
	if err != nil || len(found) == 0 {
		return err
	}
	s := section{Heading: inTheWay}
	if len(found) > 500 {
		found, s.Note = found[:500], "These are the 500 that have waited longest."
	}
	s.Tree = v.tree(found)
	v.add(s)
	return nil
}

// tree puts each waiter behind one whom it waits for. Where sessions wait for each other, the first of them stands for the root.
func (v *view) tree(found []map[string]any) (tree []*node) {
	waiters := map[string]map[string]any{}
	for _, row := range found {
		waiters[text(row["pid"])] = row
	}
	children := map[string][]string{}
	roots := map[string]map[string]any{}
	for _, row := range found {
		pid, parent := text(row["pid"]), ""
		for _, before := range strings.Fields(text(row["blocked_by"])) {
			if _, waits := waiters[before]; parent == "" || waits {
				parent = before
			}
		}
		if _, waits := waiters[parent]; !waits || parent == "" {
			parent = text(row["root_pid"])
			roots[parent] = row
		}
		children[parent] = append(children[parent], pid)
	}
	placed := map[string]bool{}
	var place func(pid string) []*node
	place = func(pid string) (behind []*node) {
		for _, child := range children[pid] {
			if placed[child] {
				continue
			}
			placed[child] = true
			row := waiters[child]
			n := &node{Query: text(row["query"]), Behind: place(child)}
			n.since, _ = row["since"].(time.Time)
			n.Parts = []cell{{Text: "Session " + child, Mark: "warn"}, {Text: person(row["owner"], row["application"])}}
			if name := cmp.Or(text(row["name"]), text(row["key"])); name == "" {
				n.Parts = append(n.Parts, cell{Text: "waits for a row of kind " + text(row["kind"])})
			} else if key := text(row["key"]); key != "" {
				n.Parts = append(n.Parts, cell{Text: "waits for key"}, cell{Text: name, Href: v.Link("/key", "key", key)})
			} else {
				n.Parts = append(n.Parts, cell{Text: "waits for " + text(row["kind"])}, cell{Text: name})
			}
			if !n.since.IsZero() {
				n.Parts = append(n.Parts, cell{Text: "since"}, cell{Time: n.since})
			}
			behind = append(behind, n)
		}
		return behind
	}
	root := func(pid string, row map[string]any) {
		n := &node{Behind: place(pid)}
		if len(n.Behind) == 0 {
			return
		}
		n.since = n.Behind[0].since
		switch {
		case pid == "":
			n.Parts = []cell{{Text: "These wait for each other, until the server ends it", Mark: "bad"}}
		case row == nil:
			n.Parts = []cell{{Text: "Session " + pid, Mark: "bad"}}
		default:
			n.Query = text(row["root_query"])
			n.Parts = []cell{{Text: "Session " + pid, Mark: "bad"}, {Text: person(row["root_owner"], row["root_application"])}, {Text: "is " + cmp.Or(text(row["root_state"]), "in a state that this role may not see")}}
			if pid == "0" {
				n.Parts[0].Text = "A prepared transaction"
			}
			if since, ok := row["root_since"].(time.Time); ok {
				n.Parts = append(n.Parts, cell{Text: "· its transaction began"}, cell{Time: since})
			}
		}
		tree = append(tree, n)
	}
	for _, pid := range slices.Sorted(maps.Keys(roots)) {
		root(pid, roots[pid])
	}
	for _, row := range found {
		if pid := text(row["pid"]); !placed[pid] {
			children[""] = []string{pid}
			root("", nil)
		}
	}
	slices.SortStableFunc(tree, func(a, b *node) int { return a.since.Compare(b.since) })
	return tree
}

func person(role, program any) string {
	return "(" + strings.Join(slices.DeleteFunc([]string{text(role), text(program)}, func(s string) bool { return s == "" }), ", ") + ")"
}

// endangered are leases that have missed two renewals, and those that were lost within a day.
func endangered(v *view) error {
	const most = 20000
	found, err := v.rows(`
		select *
		from (
			select name, token, owner, acquired_at, renewed_at, expires_at, expires_at > clock_timestamp() as live, clock_timestamp() as right_now
			from lock.lease
			limit $1
		) as lease
		where expires_at between right_now - interval '1 day' and right_now + (expires_at - renewed_at) / 3
		order by expires_at desc
		limit $2`, most, perPage+1)
	if err != nil || len(found) == 0 {
		return err
	}
	s := section{Heading: "Leases about to run out, or lost", Note: "Less than a third of their time is left, and programs renew each third. Or they ran out within a day, and nobody released them."}
	if len(found) > perPage {
		found, s.Note = found[:perPage], s.Note+" There are further ones."
	}
	s.Table = &table{Columns: []string{"Name", "Token", "Holder", "Acquired", "Renewed", "Ends"}, Rows: v.leaseRows(found)}
	if v.h.Actions != nil {
		s.Table.Columns = append(s.Table.Columns, "Action")
	}
	v.add(s)
	return nil
}

// loose lists the queues of a table that have rows of some sort, by one look into the index for each, from $1 on.
func loose(name, where string) string {
	return strings.NewReplacer("TABLE", name, "WHERE", where).Replace(`
		(with recursive queue (queue_id) as (
			(select item.queue_id from TABLE as item where WHERE and item.queue_id > $1::text order by item.queue_id limit 1)
			union all
			select (select item.queue_id from TABLE as item where WHERE and item.queue_id > queue.queue_id order by item.queue_id limit 1)
			from queue
			where queue.queue_id is not null
		)
		select 'KIND' as kind, queue.queue_id from queue where queue.queue_id is not null limit $2::bigint)`)
}

// queuesAfter lists queues, from the name $1 on, at most $2 of a sort.
var queuesAfter = strings.Join([]string{
	strings.ReplaceAll(loose("lock.task", "item.status <> 'in_progress' and item.retries_left is distinct from 0 and item.key_number is null"), "KIND", "task"),
	strings.ReplaceAll(loose("lock.task", "item.key_number is not null"), "KIND", "task"),
	strings.ReplaceAll(loose("lock.task", "item.status <> 'in_progress' and item.retries_left = 0"), "KIND", "task"),
	strings.ReplaceAll(loose("lock.task", "item.status = 'in_progress' and item.deadline is not null"), "KIND", "task"),
	strings.ReplaceAll(loose("lock.task", "item.status = 'in_progress' and item.deadline is null"), "KIND", "task"),
	strings.ReplaceAll(loose("lock.request", "item.settled_at is null and not item.failed"), "KIND", "request"),
	strings.ReplaceAll(loose("lock.request", "item.failed"), "KIND", "request"),
	"(select queue_pause.kind, queue_pause.queue_id from lock.queue_pause where queue_pause.resumed_at is null and queue_pause.queue_id > $1::text order by queue_pause.queue_id limit $2::bigint)",
}, "\nunion")

// allQueues is for search: the first thousand of a sort.
var allQueues = strings.NewReplacer("$1::text", "''", "$2::bigint", "1000").Replace(queuesAfter)

// depths says of each queue what waits, runs and died there, counted no further than $3.
var depths = `
	with queue as materialized (
		select * from (` + queuesAfter + `) as queue where queue.queue_id like $4::text order by queue.queue_id, queue.kind limit $2::bigint
	)
	select queue.kind, queue.queue_id, depth.*, queue_pause.paused_by, queue_pause.paused_at, queue_pause.reason
	from queue
	cross join lateral (
		select
			(select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'new' and task.status <> 'in_progress'
				and task.retries_left is distinct from 0 and task.key_number is null and task.available_at <= clock_timestamp() limit $3) as seen)
			+ (select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'failed' and task.status <> 'in_progress'
				and task.retries_left is distinct from 0 and task.key_number is null and task.available_at <= clock_timestamp() limit $3) as seen)
			+ (select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.key_number is not null
				and case task.status when 'in_progress' then 1 else 0 end = 0 limit $3) as seen) as ready,
			least(
				(select task.available_at from lock.task where task.queue_id = queue.queue_id and task.status = 'new' and task.status <> 'in_progress'
					and task.retries_left is distinct from 0 and task.key_number is null order by task.available_at limit 1),
				(select task.available_at from lock.task where task.queue_id = queue.queue_id and task.status = 'failed' and task.status <> 'in_progress'
					and task.retries_left is distinct from 0 and task.key_number is null order by task.available_at limit 1)
			) as oldest,
			(select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'in_progress'
				and task.deadline > clock_timestamp() limit $3) as seen)
			+ (select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'in_progress' and task.deadline is null limit $3) as seen) as running,
			(select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'in_progress'
				and task.deadline <= clock_timestamp() limit $3) as seen) as overdue,
			(select task.deadline from lock.task where task.queue_id = queue.queue_id and task.status = 'in_progress'
				and task.deadline is not null order by task.deadline limit 1) as deadline,
			(select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'failed' and task.status <> 'in_progress' and task.retries_left = 0 limit $3) as seen)
			+ (select count(*) from (select from lock.task where task.queue_id = queue.queue_id and task.status = 'new' and task.status <> 'in_progress' and task.retries_left = 0 limit $3) as seen) as dead
		where queue.kind = 'task'
		union all
		select
			(select count(*) from (select from lock.request where request.queue_id = queue.queue_id and request.settled_at is null limit $3) as seen),
			(select min(looked.created_at)
				from (
					(select request.created_at from lock.request
						where request.queue_id = queue.queue_id and request.settled_at is null and request.available_at is null
						order by request.request_id + 0 limit 1)
					union all
					(select request.created_at from lock.request
						where request.queue_id = queue.queue_id and request.settled_at is null and request.available_at <= clock_timestamp()
						order by request.available_at, request.request_id limit 1)
				) as looked),
			null, null, null,
			(select count(*) from (select from lock.request where request.queue_id = queue.queue_id and request.failed and request.settled_at > clock_timestamp() - interval '1 day' limit $3) as seen)
		where queue.kind = 'request'
	) as depth
	left join lock.queue_pause on queue_pause.kind = queue.kind and queue_pause.queue_id = queue.queue_id and queue_pause.resumed_at is null
	order by queue.queue_id, queue.kind`

// count is a number that was counted no further than limit.
func count(value any, limit int) cell {
	if n, ok := value.(int64); ok && n >= int64(limit) {
		return cell{Text: fmt.Sprintf("%d or more", limit)}
	}
	return show(value)
}

// waits is since when the oldest that is due has waited; zero: nothing is due.
func (v *view) waits(row map[string]any) time.Time {
	if at, ok := row["oldest"].(time.Time); ok && !at.After(v.Now) {
		return at
	}
	return time.Time{}
}

func (v *view) queueLink(row map[string]any, state string) string {
	if row["kind"] == "request" {
		return v.Link("/requests", "queue", text(row["queue_id"]), "state", map[string]string{"new": "outstanding", "dead": "error"}[state])
	}
	return v.Link("/tasks", "queue", text(row["queue_id"]), "status", state)
}

// troubled are the queues where something is overdue, dead, paused, or waits too long.
func troubled(v *view) error {
	found, err := v.rows(depths, "", allAtOnce, 100, "%")
	if err != nil {
		return err
	}
	note := ""
	if len(found) == allAtOnce {
		note = fmt.Sprintf("These are of the first %d queues.", allAtOnce)
	}
	overdue := &table{Columns: []string{"Queue", "Overdue", "The first was due"}}
	dead := &table{Columns: []string{"Kind", "Queue", "Dead"}}
	waiting := &table{Columns: []string{"Kind", "Queue", "The oldest has waited since"}}
	paused := &table{Columns: []string{"Kind", "Queue", "Paused", "By role", "Reason"}}
	for _, row := range found {
		kind, name := show(row["kind"]), text(row["queue_id"])
		if n, _ := row["overdue"].(int64); n > 0 {
			overdue.Rows = append(overdue.Rows, []cell{{Text: name, Href: v.queueLink(row, "in_progress")}, count(n, 100), show(row["deadline"])})
		}
		if n, _ := row["dead"].(int64); n > 0 {
			dead.Rows = append(dead.Rows, []cell{kind, {Text: name, Href: v.queueLink(row, "dead")}, count(n, 100)})
		}
		if at := v.waits(row); !at.IsZero() && v.Now.Sub(at) > slow {
			waiting.Rows = append(waiting.Rows, []cell{kind, {Text: name, Href: v.queueLink(row, "new")}, {Time: at}})
		}
		if row["paused_at"] != nil {
			paused.Rows = append(paused.Rows, append([]cell{kind, {Text: name, Href: v.Link("/queues", "q", name)}}, lists(row, "paused_at", "paused_by", "reason")...))
		}
	}
	slices.SortStableFunc(waiting.Rows, func(a, b []cell) int { return a[2].Time.Compare(b[2].Time) })
	for _, s := range []section{
		{Heading: "Tasks overdue", Note: "In progress beyond their time. The next capture takes them over, so somebody has to be capturing.", Table: overdue},
		{Heading: "Dead letters", Note: "Tasks with no capture left, and requests that ended in error within a day.", Table: dead},
		{Heading: "Waiting for more than a minute", Note: "The oldest that is due in each queue. A request that a worker is at counts as waiting until its transaction ends.", Table: waiting},
		{Heading: "Paused queues", Table: paused},
	} {
		if len(s.Table.Rows) > 0 {
			s.Note = strings.TrimSpace(s.Note + " " + note)
			v.add(s)
		}
	}
	return nil
}

func queuesPage(v *view) error {
	v.Title = "Queues"
	v.About = fmt.Sprintf("What is ready, running and dead, counted up to %d. Requests that a worker is at count as ready.", capped)
	v.Filter = &filter{Fields: []field{{Name: "q", Label: "Name begins with", Value: v.q}}}
	// A queue can be of both kinds, and one of the two may be cut off: so the page goes on behind the last whole name.
	after, prefix := v.query.Get("after"), v.q
	from, limit := after, atATime+1
	if prefix != "" {
		limit = capped
	}
	found, err := v.rows(depths, from, limit, capped, pattern(prefix))
	if err != nil {
		return err
	}
	t := &table{Columns: []string{"Kind", "Queue", "Ready", "Oldest since", "Running", "Overdue", "Dead", "Paused"}, None: "No queue has anything."}
	if len(found) > atATime {
		last := found[atATime]["queue_id"]
		found = slices.DeleteFunc(found[:atATime+1], func(row map[string]any) bool { return row["queue_id"] == last })
		t.Next = v.further("after", text(found[len(found)-1]["queue_id"]))
	}
	if v.h.Actions != nil {
		t.Columns = append(t.Columns, "Action")
	}
	for _, row := range found {
		name, kind := text(row["queue_id"]), text(row["kind"])
		oldest := cell{Text: "–"}
		if at := v.waits(row); !at.IsZero() {
			oldest = cell{Time: at}
			if v.Now.Sub(at) > slow {
				oldest.Mark = "warn"
			}
		}
		cells := []cell{{Text: kind}, {Text: name}, count(row["ready"], capped), oldest, count(row["running"], capped), count(row["overdue"], capped), count(row["dead"], capped), {Text: "–"}}
		cells[2].Href = v.queueLink(row, "new")
		cells[6].Href = v.queueLink(row, "dead")
		if kind == "task" {
			cells[4].Href, cells[5].Href = v.queueLink(row, "in_progress"), v.queueLink(row, "in_progress")
		}
		for _, i := range []int{5, 6} {
			if cells[i].Text != "0" && cells[i].Text != "–" {
				cells[i].Mark = "bad"
			}
		}
		action := v.act("Pause", "pause", "kind", kind, "queue", name)
		if row["paused_at"] != nil {
			cells[7] = cell{Text: text(row["reason"]), Mark: "warn"}
			action = v.act("Resume", "resume", "kind", kind, "queue", name)
		}
		if v.h.Actions != nil {
			cells = append(cells, action)
		}
		t.Rows = append(t.Rows, cells)
	}
	v.add(section{Table: t})
	return nil
}

const (
	inTheWay = "Who is in the way"
	server   = "The server"
	notices  = "Good to know"
)

// check asks lock.check(), once a minute at most. No page holds a connection meanwhile: it might be the last one.
func (h *handler) check(ctx context.Context) ([]map[string]any, error) {
	select {
	case h.checking <- struct{}{}:
		defer func() { <-h.checking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if time.Since(h.checked) < fresh {
		return h.findings, nil
	}
	err := pgx.BeginTxFunc(ctx, h.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local lock_timeout = '1s'"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `select severity, subject, finding, remedy from lock.check() order by array_position('{error,warning,notice}', severity), subject`)
		if err == nil {
			h.findings, err = pgx.CollectRows(rows, pgx.RowToMap)
		}
		return err
	})
	if err == nil {
		h.checked = time.Now()
	}
	return h.findings, err
}

// found shows what lock.check() said.
func (v *view) found(findings []map[string]any) {
	serious, good := &table{Columns: []string{"Severity", "Subject", "Finding", "Remedy"}}, &table{Columns: []string{"Subject", "Finding", "Remedy"}}
	for _, row := range findings {
		if row["severity"] == "notice" {
			good.Rows = append(good.Rows, lists(row, "subject", "finding", "remedy"))
			continue
		}
		cells := lists(row, "severity", "subject", "finding", "remedy")
		cells[0].Mark = map[any]string{"error": "bad", "warning": "warn"}[row["severity"]]
		serious.Rows = append(serious.Rows, cells)
	}
	if len(serious.Rows) > 0 {
		v.add(section{Heading: server, Note: "What lock.check() says, as the console's own session sees it.", Table: serious})
	}
	if len(good.Rows) > 0 {
		v.add(section{Heading: notices, Table: good})
	}
}
