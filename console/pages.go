package console

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	perPage = 50
	looks   = 5000 // how many names a page looks at to find those that a filter wants
	capped  = 1000 // how far anything is counted
)

func pages() map[string]func(*view) error {
	return map[string]func(*view) error{
		"/{$}": wrong, "/keys": keys, "/key": key, "/mutexes": grants("mutex"), "/timeouts": grants("timeout"), "/slots": grants("time_slot"),
		"/throttles": grants("throttle"), "/limits": grants("rate_limit"), "/leases": leases, "/queues": queuesPage, "/tasks": tasks, "/task": task, "/requests": requests,
		"/entity": entity, "/ledger": ledger, "/search": search,
	}
}

// With and Node hand the page on to a template.
func (p *page) With(c cell) map[string]any  { return map[string]any{"page": p, "cell": c} }
func (p *page) Node(n *node) map[string]any { return map[string]any{"page": p, "node": n} }

// Problem and Remedy are for the template.
func (f failure) Problem() string { return f.text }
func (f failure) Remedy() string  { return f.hint }

// rows reads an answer as maps. Lists of numbers, enums, intervals and jsonb are to be cast to text.
func (v *view) rows(sql string, args ...any) ([]map[string]any, error) {
	// Planned with the values at hand: what a name begins with is a stretch of an index only when it is known.
	rows, err := v.tx.Query(v.ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToMap)
}

// show turns what a row has into a cell.
func show(value any) cell {
	switch value := value.(type) {
	case nil:
		return cell{Text: "–"}
	case time.Time:
		return cell{Time: value}
	case pgtype.InfinityModifier:
		if value < 0 {
			return cell{Text: "never"}
		}
		return cell{Text: "for ever"}
	case bool:
		if value {
			return cell{Text: "yes"}
		}
		return cell{Text: "no"}
	case pgtype.Interval:
		length := time.Duration(value.Microseconds)*time.Microsecond + time.Duration(value.Days)*24*time.Hour
		switch {
		case value.Months == 0:
			return cell{Text: span(length)}
		case length == 0:
			return cell{Text: fmt.Sprintf("%d months", value.Months)}
		}
		return cell{Text: fmt.Sprintf("%d months, %s", value.Months, span(length))}
	}
	return cell{Text: fmt.Sprint(value)}
}

func text(value any) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// visible is JSON whose characters that turn the reading direction around are escaped, so that nothing in it reads as something else.
func visible(json any) any {
	s, ok := json.(string)
	if !ok {
		return json
	}
	var out strings.Builder
	for _, c := range s {
		if unicode.Is(unicode.Bidi_Control, c) {
			fmt.Fprintf(&out, `\u%04x`, c)
		} else {
			out.WriteRune(c)
		}
	}
	return out.String()
}

// lists makes a row of cells of some columns.
func lists(row map[string]any, columns ...string) []cell {
	cells := make([]cell, len(columns))
	for i, column := range columns {
		cells[i] = show(row[column])
		if column == "payload" || column == "previous" {
			cells[i] = show(visible(row[column]))
		}
	}
	return cells
}

// pattern is for like: what begins with a text.
func pattern(prefix string) string {
	return strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(prefix) + "%"
}

// further is the address of the next page: this one's query, with other values.
func (v *view) further(values ...string) string {
	query := []string{}
	for name := range v.query {
		query = append(query, name, v.query.Get(name))
	}
	return v.Link(v.Path, append(query, values...)...)
}

// act is a link to an action, where there are actions; else it is empty.
func (v *view) act(label, do string, query ...string) cell {
	if v.h.Actions == nil {
		return cell{}
	}
	return cell{Text: label, Href: v.Link("/act", append([]string{"do", do}, query...)...), Act: true}
}

func (v *view) add(s section) { v.Sections = append(v.Sections, s) }

func (v *view) number(name string) (int64, error) {
	value := v.query.Get(name)
	if value == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, failure{status: http.StatusBadRequest, text: "The address is wrong: " + name + " must be a whole number."}
	}
	return n, nil
}

func keys(v *view) error {
	v.Title = "Keys"
	v.About = "What transactions hold and wait for. A key shows by its name while somebody waits for it by name, and else by its number. The field above finds a held key by its name."
	found, err := v.rows(`
		select kind, key::text as key, name, mode, granted, owner, pid, since, blocked_by::text as blocked_by, left(details, 300) as details
		from lock.activity
		where kind = 'key'
		order by granted, since, pid
		limit 201`)
	if err != nil {
		return err
	}
	t := &table{Columns: []string{"Key", "Mode", "State", "Session", "Role", "Since", "Behind sessions", "What it runs"}, None: "Nobody holds a key or waits for one."}
	for _, row := range found[:min(len(found), 200)] {
		cells := lists(row, "name", "mode", "granted", "pid", "owner", "since", "blocked_by", "details")
		if key := text(row["key"]); key != "" {
			cells[0].Href = v.Link("/key", "key", key)
		}
		cells[2] = cell{Text: "holds"}
		if row["granted"] == false {
			cells[2] = cell{Text: "waits", Mark: "warn"}
		}
		t.Rows = append(t.Rows, cells)
	}
	s := section{Table: t}
	if len(found) > 200 {
		s.Note = "These are the first 200, waiters before holders. Search for a key by its name or number."
	}
	v.add(s)
	return v.rowEngine()
}

// rowEngine says what cannot be seen there.
func (v *view) rowEngine() error {
	var advisory bool
	err := v.tx.QueryRow(v.ctx, "select lock_internal.is_advisory()").Scan(&advisory)
	if err == nil && !advisory {
		v.add(section{Note: "This database uses the row engine. A holder shows only while somebody waits for it. A session that waits for a new key shows without that key."})
	}
	return err
}

// key is one key, by its number or by a name.
func key(v *view) error {
	number, err := v.number("key")
	if err != nil {
		return err
	}
	call, wanted := "lock.who($1::bigint)", any(number)
	v.Title = "Key " + v.query.Get("key")
	if name := v.query.Get("name"); name != "" {
		call, wanted = "lock.who($1::text)", name
		v.Title = "Key " + name
	}
	if err := v.who(call, wanted, "Nobody holds this key or waits for it."); err != nil {
		return err
	}
	return v.rowEngine()
}

// who shows the sessions that hold a key and wait for it.
func (v *view) who(call string, wanted any, none string) error {
	found, err := v.rows(`
		select mode, granted, pid, owner, application, since, blocked_by::text as blocked_by, state, transaction_since, left(query, 300) as query, hint
		from `+call, wanted)
	if err != nil {
		return err
	}
	s := section{Table: &table{Columns: []string{"State", "Mode", "Session", "Role", "Program", "Since", "Behind sessions", "Session is", "Transaction began", "What it runs"}, None: none}}
	for _, row := range found {
		if row["hint"] != nil {
			s.Note = text(row["hint"])
			continue
		}
		cells := lists(row, "granted", "mode", "pid", "owner", "application", "since", "blocked_by", "state", "transaction_since", "query")
		cells[0] = cell{Text: "holds"}
		if row["granted"] == false {
			cells[0] = cell{Text: "waits", Mark: "warn"}
		}
		s.Table.Rows = append(s.Table.Rows, cells)
	}
	v.add(s)
	return nil
}

// A grantKind is a page of a kind with a view that has one row a name.
type grantKind struct {
	title, about, table, id, view, taken, chosen, do string
	columns                                          []string // of the view, and their headings
	headings                                         []string
}

var grantKinds = map[string]grantKind{
	"mutex": {
		title: "Mutexes", about: "Flags that stay acquired until somebody releases them, crash or not.", table: "lock.mutex", id: "task_id", view: "lock.mutex_status",
		taken: "acquired", chosen: "only acquired ones", do: "release-mutex",
		columns: []string{"acquired", "owner", "acquired_at", "released_at"}, headings: []string{"Acquired", "Owner", "Since", "Last released"},
	},
	"timeout": {
		title: "Timeouts", about: "Locks that can be acquired again once their interval has passed.", table: "lock.timeout", id: "task_id", view: "lock.timeout_status",
		taken: "locked", chosen: "only locked ones", do: "release-timeout",
		columns: []string{"locked", "ts", "timeout", "free_at", "clock_was_set_back"}, headings: []string{"Locked", "Acquired", "Interval", "Free", "Clock was set back"},
	},
	"time_slot": {
		title: "Time slots", about: "The newest slot of time that each task was granted.", table: "lock.time_slot", id: "task_id", view: "lock.time_slot_status",
		taken: "free_in > interval '0'", chosen: "only those whose slot goes on", do: "release-slot",
		columns: []string{"slot_start", "slot_end", "granted_at", "free_in"}, headings: []string{"Slot began", "Slot ends", "Granted", "Free in"},
	},
	"throttle": {
		title: "Throttles", about: "Resources that are granted a number of times per interval. Each says who had the last grant and why, and when the next one is free.",
		table: "lock.throttled_resource", id: "resource_id", view: "lock.throttled_resource_status",
		taken: "throttled", chosen: "only throttled ones", do: "release-throttle",
		columns:  []string{"throttled", "last_locked", "last_locker_details", "throttle_interval", "free_at", "permits_left", "permits", "clock_was_set_back"},
		headings: []string{"Throttled", "Last grant", "By whom and why", "Interval", "Next grant", "Permits left", "Of", "Clock was set back"},
	},
	"rate_limit": {
		title: "Rate limits", about: "Buckets of tokens that come back evenly. A call takes some of them. The limits are those of the last grant.",
		table: "lock.rate_limit", id: "limit_id", view: "lock.rate_limit_status",
		taken: "full_at > clock_timestamp()", chosen: "only those that are not full", do: "release-limit",
		columns: []string{"remaining", "burst", "rate", "per", "taken_at", "full_at"}, headings: []string{"Tokens left", "Of", "Come back", "Per", "Last grant", "Full"},
	},
}

// grants is the page of such a kind. The view says what holds; the table beneath has the order that a page needs.
func grants(kind string) func(*view) error {
	k := grantKinds[kind]
	return func(v *view) error {
		v.Title, v.About = k.title, k.about
		state := v.query.Get("state")
		v.Filter = &filter{Fields: []field{
			{Name: "q", Label: "Name begins with", Value: v.q},
			{Name: "state", Label: "Show", Value: state, Choices: []choice{{"", "all"}, {"taken", k.chosen}}},
		}}
		names, next, err := v.names(k.table, k.id, state != "")
		if err != nil {
			return err
		}
		sql := fmt.Sprintf("select %s as name, (%s) as taken, %s from %s where %[1]s = any ($1::text[])", k.id, k.taken, strings.Join(k.columns, ", "), k.view)
		if state != "" {
			sql += " and " + k.taken
		}
		found, err := v.rows(sql+fmt.Sprintf(" order by %s limit %d", k.id, perPage+1), names)
		if err != nil {
			return err
		}
		t := &table{Columns: append([]string{"Name"}, k.headings...), None: "There is none such."}
		if len(found) > perPage {
			found = found[:perPage]
			next = v.further("after", text(found[perPage-1]["name"]))
		}
		t.Next = next
		if t.Next != "" && len(found) < perPage {
			t.None = fmt.Sprintf("None of the %d names from here on is such. There are further ones.", looks)
		}
		if v.h.Actions != nil {
			t.Columns = append(t.Columns, "Action")
		}
		for _, row := range found {
			cells := lists(row, append([]string{"name"}, k.columns...)...)
			cells[0].Href = v.Link(v.Path, "q", text(row["name"]))
			if row["taken"] == true && (k.columns[0] == "acquired" || k.columns[0] == "locked" || k.columns[0] == "throttled") {
				cells[1].Mark = "warn"
			}
			if v.h.Actions != nil {
				action := cell{}
				if row["taken"] == true || kind == "throttle" && text(row["permits"]) != text(row["permits_left"]) {
					action = v.act("Force release", k.do, "id", text(row["name"]))
				}
				cells = append(cells, action)
			}
			t.Rows = append(t.Rows, cells)
		}
		v.add(section{Table: t})
		return nil
	}
}

// names are the next names of a table in their order, and the address of what follows when that is as many as a page looks at.
func (v *view) names(table, id string, filtered bool) (names []string, next string, err error) {
	limit := perPage + 1
	if filtered {
		limit = looks
	}
	found, err := v.rows(fmt.Sprintf("select %s as name from %s where %[1]s > $1::text and %[1]s like $2::text order by %[1]s limit $3", id, table), v.query.Get("after"), pattern(v.q), limit)
	for _, row := range found {
		names = append(names, text(row["name"]))
	}
	if filtered && len(names) == limit {
		next = v.further("after", names[limit-1])
	}
	return names, next, err
}

func leases(v *view) error {
	v.Title = "Leases"
	v.About = "Who holds a permit of which name, and until when if it is not renewed."
	v.Filter = &filter{Fields: []field{{Name: "q", Label: "Name begins with", Value: v.q}}}
	token, err := v.number("token")
	if err != nil {
		return err
	}
	found, err := v.rows(`
		select lease.name, lease.token, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at, lease.expires_at > clock_timestamp() as live,
			(select count(*) from (select from lock.lease as other where other.name = lease.name and other.expires_at > clock_timestamp() limit $4) as other) as used
		from lock.lease
		where (lease.name, lease.token) > ($1::text, $2::bigint) and lease.name like $3::text
		order by lease.name, lease.token
		limit $5`, v.query.Get("after"), token, pattern(v.q), capped, perPage+1)
	if err != nil {
		return err
	}
	t := &table{Columns: []string{"Name", "Token", "Holder", "Acquired", "Renewed", "Ends", "Permits used"}, None: "There is none such."}
	if len(found) > perPage {
		found = found[:perPage]
		last := found[perPage-1]
		t.Next = v.further("after", text(last["name"]), "token", text(last["token"]))
	}
	t.Rows = v.leaseRows(found, "used")
	if v.h.Actions != nil {
		t.Columns = append(t.Columns, "Action")
	}
	v.add(section{Table: t})
	return nil
}

func (v *view) leaseRows(found []map[string]any, more ...string) (rows [][]cell) {
	for _, row := range found {
		cells := lists(row, append([]string{"name", "token", "owner", "acquired_at", "renewed_at", "expires_at"}, more...)...)
		cells[0].Href = v.Link("/leases", "q", text(row["name"]))
		action := cell{}
		if row["live"] == true {
			action = v.act("Force release", "release-lease", "id", text(row["name"]), "token", text(row["token"]))
		} else {
			cells[5].Mark = "bad"
		}
		if v.h.Actions != nil {
			cells = append(cells, action)
		}
		rows = append(rows, cells)
	}
	return rows
}

// Statuses of tasks that a page can show; dead is failed or new with no capture left.
var taskStatuses = []choice{{"new", "new"}, {"in_progress", "in progress, by deadline"}, {"failed", "failed"}, {"dead", "dead letters"}, {"done", "done"}}

func tasks(v *view) error {
	v.Title = "Tasks"
	queue, status := v.query.Get("queue"), v.query.Get("status")
	v.Filter = &filter{Fields: []field{
		{Name: "queue", Label: "Queue", Value: queue},
		{Name: "status", Label: "Status", Value: status, Choices: append([]choice{{"", "any, by id"}}, taskStatuses...)},
		{Name: "q", Label: "Id begins with", Value: v.q},
	}}
	t := &table{Columns: []string{"Id", "Queue", "Status", "Available", "Deadline", "Tries", "Captures left", "Owner", "Message"}, None: "There is none such."}
	const columns = `task.id, task.queue_id, task.status::text as status, task.available_at, task.deadline, task.tries, task.retries_left, task.owner, left(task.message, 200) as message`
	var found []map[string]any
	var err error
	if queue != "" && status != "" && v.q == "" {
		found, err = v.tasksOf(columns, queue, status, t)
	} else {
		// By id. A queue and a status are looked for among so many.
		limit := perPage + 1
		if queue != "" || status != "" {
			limit = looks
		}
		found, err = v.rows(`
			select `+columns+`, task.retries_left = 0 and task.status in ('new', 'failed') as dead
			from lock.task
			where (task.id, task.queue_id) > ($1::text, $2::text) and task.id like $3::text
			order by task.id, task.queue_id
			limit $4`, v.query.Get("after"), v.query.Get("after_queue"), pattern(v.q), limit)
		full := len(found) == limit
		wanted := found[:0:0]
		last := -1
		for i, row := range found {
			if len(wanted) == perPage {
				full = true
				break
			}
			last = i
			if (queue == "" || row["queue_id"] == queue) && (status == "" || status == row["status"] || status == "dead" && row["dead"] == true) {
				wanted = append(wanted, row)
			}
		}
		if full && last >= 0 {
			t.Next = v.further("after", text(found[last]["id"]), "after_queue", text(found[last]["queue_id"]))
			t.None = fmt.Sprintf("None of the %d ids from here on is such. There are further ones.", looks)
		}
		found = wanted
	}
	if err != nil {
		return err
	}
	for _, row := range found {
		cells := lists(row, "id", "queue_id", "status", "available_at", "deadline", "tries", "retries_left", "owner", "message")
		cells[0].Href = v.Link("/task", "queue", text(row["queue_id"]), "id", text(row["id"]))
		cells[1].Href = v.Link("/queues", "q", text(row["queue_id"]))
		if deadline, ok := row["deadline"].(time.Time); ok && deadline.Before(v.Now) {
			cells[4].Mark = "bad"
		}
		if row["retries_left"] == nil {
			cells[6] = cell{Text: "any"}
		}
		t.Rows = append(t.Rows, cells)
	}
	v.add(section{Table: t, Links: v.queueActions("task", queue, status == "dead")})
	return nil
}

// tasksOf are those of a queue in one status, in the order of the index that has them. What follows is found by the time of the
// last one and how many of that time came before.
func (v *view) tasksOf(columns, queue, status string, t *table) ([]map[string]any, error) {
	since, skip, err := v.mark()
	if err != nil {
		return nil, err
	}
	at := "task.available_at"
	var branches []string
	switch status {
	case "in_progress":
		at = "task.deadline"
		branches = []string{"task.status = 'in_progress' and task.deadline is not null"}
	case "dead":
		branches = []string{"task.status = 'failed' and task.status <> 'in_progress' and task.retries_left = 0", "task.status = 'new' and task.status <> 'in_progress' and task.retries_left = 0"}
	case "new", "failed", "done":
		for _, left := range []string{"is distinct from 0 and task.key_number is null", "= 0"} {
			branches = append(branches, fmt.Sprintf("task.status = '%s' and task.status <> 'in_progress' and task.retries_left %s", status, left))
		}
	default:
		return nil, failure{status: http.StatusBadRequest, text: "The address is wrong: there is no such status."}
	}
	for i, branch := range branches {
		branches[i] = fmt.Sprintf("(select %s, %s as at from lock.task where task.queue_id = $1::text and %s and %[2]s >= $2::timestamptz order by %[2]s limit $3)", columns, at, branch)
	}
	if status == "in_progress" { // Those that never time out come last.
		branches = append(branches, fmt.Sprintf("(select %s, 'infinity'::timestamptz as at from lock.task where task.queue_id = $1::text and task.status = 'in_progress' and task.deadline is null order by task.changed_at limit $3)", columns))
	}
	if status == "new" || status == "failed" { // Those that wait for their key: of so many, since they stand by key.
		branches = append(branches, fmt.Sprintf(`(select %s, task.available_at as at from (
				select * from lock.task where task.queue_id = $1::text and task.key_number is not null
				and case task.status when 'in_progress' then 1 else 0 end = 0 limit 1000
			) as task where task.status = '%s' and task.available_at >= $2::timestamptz order by at limit $3)`, columns, status))
	}
	found, err := v.rows("select * from ("+strings.Join(branches, " union all ")+") as task order by at offset $4 limit $5", queue, since, skip+perPage+1, skip, perPage+1)
	if err == nil && len(found) > perPage {
		found = found[:perPage]
		t.Next = v.further(v.next(found, since, skip)...)
	}
	return found, err
}

// mark is where a page that is ordered by time begins: at a time, behind some of it.
func (v *view) mark() (since string, skip int64, err error) {
	since = v.query.Get("since")
	if since == "" {
		return "-infinity", 0, nil
	}
	skip, err = v.number("skip")
	if _, wrong := time.Parse(time.RFC3339Nano, since); err == nil && (wrong != nil && since != "infinity" && since != "-infinity" || skip < 0 || skip > 1e6) {
		err = failure{status: http.StatusBadRequest, text: "The address is wrong: since must be a time, and skip a number up to a million."}
	}
	return since, skip, err
}

// next is the mark behind what was found.
func (v *view) next(found []map[string]any, since string, skip int64) []string {
	stamp := func(row map[string]any) string {
		if at, ok := row["at"].(time.Time); ok {
			return at.UTC().Format(time.RFC3339Nano)
		}
		return text(row["at"])
	}
	last := stamp(found[len(found)-1])
	same := int64(0)
	for _, row := range found {
		if stamp(row) == last {
			same++
		}
	}
	if last == since {
		same += skip
	}
	return []string{"since", last, "skip", strconv.FormatInt(same, 10)}
}

func (v *view) queueActions(kind, queue string, dead bool) (actions []cell) {
	if queue == "" || v.h.Actions == nil {
		return nil
	}
	if dead {
		actions = append(actions, v.act("Redrive dead letters", "redrive", "queue", queue))
	}
	return append(actions, v.act("Pause the queue", "pause", "kind", kind, "queue", queue), v.act("Resume the queue", "resume", "kind", kind, "queue", queue))
}

func task(v *view) error {
	id, queue := v.query.Get("id"), v.query.Get("queue")
	v.Title = "Task " + id
	found, err := v.rows(`
		select id, queue_id, status::text as status, attempt, tries, retries_left, timeout::text as timeout, available_at, deadline, owner, message,
			jsonb_pretty(payload) as payload, created_at, changed_at
		from lock.get_task($1, $2)`, id, queue)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return failure{status: http.StatusNotFound, text: "There is no such task.", hint: "It may have been purged, or be in another queue."}
	}
	row := found[0]
	s := section{}
	for _, f := range [][2]string{
		{"status", "Status"}, {"queue_id", "Queue"}, {"owner", "Captured last by"}, {"message", "Last error"}, {"attempt", "Attempt (the fencing number)"}, {"tries", "Tries"},
		{"retries_left", "Captures left"}, {"timeout", "Time for a capture"}, {"payload", "Payload"},
	} {
		c := lists(row, f[0])[0]
		switch {
		case f[0] == "queue_id":
			c.Href = v.Link("/queues", "q", queue)
		case f[0] == "retries_left" && row[f[0]] == nil:
			c = cell{Text: "any number"}
		case f[0] == "retries_left" && text(row[f[0]]) == "0" && (row["status"] == "failed" || row["status"] == "new"):
			c = cell{Text: "none: a dead letter", Mark: "bad"}
		}
		s.Facts = append(s.Facts, fact{f[1], c})
	}
	if row["status"] != "in_progress" && v.h.Actions != nil {
		s.Links = []cell{v.act("Retry", "retry-task", "queue", queue, "id", id)}
	}
	v.add(s)

	type moment struct {
		at   any
		what string
		mark string
	}
	moments := []moment{{row["created_at"], "Created", ""}}
	switch row["status"] {
	case "in_progress":
		moments = append(moments, moment{row["available_at"], "Had been available", ""}, moment{row["changed_at"], strings.TrimSuffix("Captured by "+text(row["owner"]), " by "), ""})
		if deadline, ok := row["deadline"].(time.Time); ok {
			if deadline.Before(v.Now) {
				moments = append(moments, moment{deadline, "Its time ran out: the next capture takes it over", "bad"})
			} else {
				moments = append(moments, moment{deadline, "Its time runs out", ""})
			}
		}
	case "done":
		moments = append(moments, moment{row["changed_at"], "Done", "good"})
	default:
		if text(row["attempt"]) != "0" {
			what := "Given back, or revived"
			if row["status"] == "failed" {
				what = "Failed"
			}
			moments = append(moments, moment{row["changed_at"], what, ""})
		}
		if text(row["retries_left"]) != "0" {
			moments = append(moments, moment{row["available_at"], "Available to captures", ""})
		}
	}
	life := &table{Columns: []string{"When", "What"}}
	for _, m := range moments {
		life.Rows = append(life.Rows, []cell{show(m.at), {Text: m.what, Mark: m.mark}})
	}
	v.add(section{Heading: "Its life", Note: "A task keeps its last capture and its last change, not each one. The ledger's lines are below.", Table: life})
	return v.ledgerOf("task", queue+": "+id)
}

func requests(v *view) error {
	v.Title = "Requests"
	queue, state := v.query.Get("queue"), v.query.Get("state")
	v.Filter = &filter{Fields: []field{
		{Name: "queue", Label: "Queue", Value: queue},
		{Name: "state", Label: "Show", Value: state, Choices: []choice{{"", "all, newest first"}, {"outstanding", "outstanding, oldest first"}, {"error", "ended in error, newest first"}}},
	}}
	if state == "" {
		return v.requestsBefore("", queue)
	}
	if queue == "" {
		v.add(section{Note: "Name a queue: what is outstanding or in error lies in an index of its queue.", Links: []cell{{Text: "The queues", Href: v.Link("/queues")}}})
		return nil
	}
	var found []map[string]any
	next := ""
	switch state {
	case "outstanding":
		after, err := v.number("after")
		if err != nil {
			return err
		}
		found, err = v.rows("select "+requestColumns+`
			from lock.request
			where request.queue_id = $1::text and request.settled_at is null and not request.failed and request.request_id > $2::bigint
			order by request.request_id limit $3`, queue, after, perPage+1)
		if err != nil {
			return err
		}
		if len(found) > perPage {
			next = v.further("after", text(found[perPage-1]["request_id"]))
		}
	case "error":
		since, skip, err := v.mark()
		if err != nil {
			return err
		}
		if since == "-infinity" {
			since = "infinity"
		}
		found, err = v.rows("select "+requestColumns+`, request.settled_at as at
			from lock.request
			where request.queue_id = $1::text and request.failed and request.settled_at <= $2::timestamptz
			order by request.settled_at desc offset $3 limit $4`, queue, since, skip, perPage+1)
		if err != nil {
			return err
		}
		if len(found) > perPage {
			next = v.further(v.next(found[:perPage], since, skip)...)
		}
	default:
		return failure{status: http.StatusBadRequest, text: "The address is wrong: there is no such state."}
	}
	v.add(section{Table: v.requestTable(found, next), Links: v.queueActions("request", queue, false)})
	return nil
}

const requestColumns = `request.request_id, request.queue_id, request.entity_id, request.request_type::text as type, request.request_status::text as status, request.created_at,
	request.started_at, request.settled_at, request.available_at, request.tries, request.process_id::text as process, left(request.message, 300) as message, left(request.payload::text, 300) as payload`

func (v *view) requestTable(found []map[string]any, next string) *table {
	t := &table{Columns: []string{"Request", "Queue", "Entity", "Type", "Status", "Made", "Started", "Settled", "Not before", "Tries", "Process", "Message", "Payload"}, None: "There is none such.", Next: next}
	if v.h.Actions != nil {
		t.Columns = append(t.Columns, "Action")
	}
	for _, row := range found[:min(len(found), perPage)] {
		cells := lists(row, "request_id", "queue_id", "entity_id", "type", "status", "created_at", "started_at", "settled_at", "available_at", "tries", "process", "message", "payload")
		cells[1].Href = v.Link("/requests", "queue", text(row["queue_id"]), "state", "outstanding")
		cells[2].Href = v.Link("/entity", "queue", text(row["queue_id"]), "id", text(row["entity_id"]))
		action := cell{}
		switch row["status"] {
		case "error":
			cells[4].Mark = "bad"
			action = v.act("Retry", "retry-request", "id", text(row["request_id"]), "entity", text(row["entity_id"]))
		case "new":
			action = v.act("Cancel", "cancel-request", "id", text(row["request_id"]), "entity", text(row["entity_id"]))
		}
		if v.h.Actions != nil {
			cells = append(cells, action)
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// requestsBefore lists requests, the newest first; those of one queue are looked for among so many.
func (v *view) requestsBefore(heading, queue string) error {
	before, err := v.number("before")
	if err != nil {
		return err
	}
	if before == 0 {
		before = 1<<63 - 1
	}
	found, err := v.rows(`
		with looked as materialized (
			select * from lock.request where request.request_id < $1::bigint order by request.request_id desc limit $2
		)
		select `+requestColumns+`, (select min(looked.request_id) from looked) as lowest, (select count(*) from looked) as many
		from (select 1) as one left join looked as request on $3::text in ('', request.queue_id)
		order by request.request_id desc nulls last limit $4`, before, map[bool]int{true: perPage + 1, false: looks}[queue == ""], queue, perPage+1)
	if err != nil {
		return err
	}
	next := ""
	if len(found) > perPage {
		next = v.further("before", text(found[perPage-1]["request_id"]))
	} else if len(found) > 0 && text(found[0]["many"]) == strconv.Itoa(looks) {
		next = v.further("before", text(found[0]["lowest"]))
	}
	if len(found) == 1 && found[0]["request_id"] == nil {
		found = nil
	}
	v.add(section{Heading: heading, Table: v.requestTable(found, next), Links: v.queueActions("request", queue, false)})
	return nil
}

// entity is one entity with all its requests, and who has it.
func entity(v *view) error {
	id, queue := v.query.Get("id"), v.query.Get("queue")
	v.Title = "Entity " + id
	v.About = "Of queue " + queue + ". A worker that is at it shows below; what it does shows as new until it commits."
	holders, err := v.rows(`
		select pg_locks.pid, pg_stat_activity.usename::text as owner, pg_stat_activity.application_name, pg_stat_activity.state, pg_stat_activity.xact_start, left(pg_stat_activity.query, 300) as query
		from (select lock_internal.entity_number($1::text, $2::text) as number) as wanted
		join pg_locks on pg_locks.locktype = 'advisory' and pg_locks.objsubid = 2 and pg_locks.granted
			and (pg_locks.classid::bigint << 32 | pg_locks.objid::bigint) = wanted.number
			and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
		left join pg_stat_activity on pg_stat_activity.pid = pg_locks.pid
		where lock_internal.is_advisory()`, queue, id)
	if err != nil {
		return err
	}
	t := &table{Columns: []string{"Session", "Role", "Program", "Session is", "Transaction began", "What it runs"}, None: "Nobody has it."}
	for _, row := range holders {
		t.Rows = append(t.Rows, lists(row, "pid", "owner", "application_name", "state", "xact_start", "query"))
	}
	var advisory bool
	if err := v.tx.QueryRow(v.ctx, "select lock_internal.is_advisory()").Scan(&advisory); err != nil {
		return err
	}
	if advisory {
		v.add(section{Heading: "Who has it", Table: t})
	} else if err := v.who("(select who.* from (select lock_internal.entity_number(($1::text[])[1], ($1::text[])[2]) as number) as wanted cross join lateral lock.who(wanted.number) as who) as who",
		[]string{queue, id}, "Nobody has it who could be seen."); err != nil {
		return err
	}
	if err := v.rowEngine(); err != nil {
		return err
	}
	before, err := v.number("before")
	if err != nil {
		return err
	}
	if before == 0 {
		before = 1<<63 - 1
	}
	branches := []string{}
	for _, settled := range []string{"is not null", "is null"} {
		branches = append(branches, "(select request.* from lock.request where request.queue_id = $1::text and request.entity_id = $2::text and request.settled_at "+settled+
			" and request.request_id < $3::bigint order by request.request_id desc limit $4)")
	}
	found, err := v.rows("select "+requestColumns+" from ("+strings.Join(branches, " union all ")+") as request order by request.request_id desc limit $4", queue, id, before, perPage+1)
	if err != nil {
		return err
	}
	next := ""
	if len(found) > perPage {
		next = v.further("before", text(found[perPage-1]["request_id"]))
	}
	v.add(section{Heading: "Its history", Table: v.requestTable(found, next)})
	return v.ledgerOf("request", queue+": "+id)
}

func ledger(v *view) error {
	v.Title = "Ledger"
	v.About = "What operators took away, and what they did from this console: who, when and why. The newest comes first."
	v.Filter = &filter{Fields: []field{{Name: "q", Label: "Id begins with", Value: v.q}}}
	if err := v.ledgerWhere("", "true", "There is nothing in the ledger."); err != nil {
		return err
	}
	found, err := v.rows(`
		select kind, queue_id, paused_by, paused_at, reason, resumed_by, resumed_at
		from lock.queue_pause
		order by pause_id desc
		limit 20`)
	if err != nil {
		return err
	}
	t := &table{Columns: []string{"Kind", "Queue", "Paused by role", "Paused", "Reason", "Resumed by role", "Resumed"}, None: "No queue was ever paused."}
	for _, row := range found {
		t.Rows = append(t.Rows, lists(row, "kind", "queue_id", "paused_by", "paused_at", "reason", "resumed_by", "resumed_at"))
	}
	v.add(section{Heading: "The last 20 pauses of queues", Table: t})
	return nil
}

// ledgerOf shows what the ledger has of one thing, if anything.
func (v *view) ledgerOf(kind, id string) error {
	const heading = "What operators did"
	return v.part(heading, func(v *view) error {
		return v.ledgerWhere(heading, "forced_release.kind = $4::text and forced_release.id = $5::text", "", kind, id)
	})
}

func (v *view) ledgerWhere(heading, where, none string, args ...any) error {
	before, err := v.number("line")
	if err != nil {
		return err
	}
	if before == 0 {
		before = 1<<63 - 1
	}
	prefix := "%"
	if none != "" {
		prefix = pattern(v.q)
	}
	found, err := v.rows(`
		select release_id, kind, id, previous ->> 'action' as action, reason, released_by, released_at, (previous - 'action')::text as previous
		from lock.forced_release
		where `+where+` and forced_release.release_id < $1::bigint and ($2::text = '%' or forced_release.id like $2::text)
		order by forced_release.release_id desc
		limit $3`, append([]any{before, prefix, perPage + 1}, args...)...)
	if err != nil {
		return err
	}
	if len(found) == 0 && none == "" {
		return nil
	}
	t := &table{Columns: []string{"When", "Kind", "Id", "What", "Reason", "Role", "As it was"}, None: none}
	if len(found) > perPage {
		found = found[:perPage]
		t.Next = v.further("line", text(found[perPage-1]["release_id"]))
	}
	for _, row := range found {
		cells := lists(row, "released_at", "kind", "id", "action", "reason", "released_by", "previous")
		if row["action"] == nil {
			cells[3] = cell{Text: "force release"}
		}
		cells[2].Href = v.thing(text(row["kind"]), text(row["id"]))
		t.Rows = append(t.Rows, cells)
	}
	v.add(section{Heading: heading, Table: t})
	return nil
}

// thing is the page where a name of a kind is found.
func (v *view) thing(kind, id string) string {
	if path, ok := map[string]string{"mutex": "/mutexes", "timeout": "/timeouts", "time_slot": "/slots", "throttle": "/throttles", "rate_limit": "/limits", "lease": "/leases"}[kind]; ok {
		return v.Link(path, "q", id)
	}
	return ""
}

// search looks for a name in every kind: what begins with it where names have an order, and else what is exactly it.
func search(v *view) error {
	v.Title = "Search"
	if v.q == "" {
		v.add(section{Note: "Type a name, or its beginning, into the field above."})
		return nil
	}
	v.Title = "Search: " + v.q
	const few = 6
	t := &table{Columns: []string{"Kind", "Name", "In queue"}, None: "No name begins like this. What has no index by name is found only whole: keys in use, and entities of requests."}
	if len(v.q) <= 1024 {
		used, err := v.rows("select from lock.who($1::text) where pid is not null limit 1", v.q)
		if err != nil {
			return err
		}
		if len(used) > 0 {
			t.Rows = append(t.Rows, []cell{{Text: "key"}, {Text: v.q, Href: v.Link("/key", "name", v.q)}, {}})
		}
	}
	for _, kind := range []struct{ what, table, id, path string }{
		{"mutex", "lock.mutex", "task_id", "/mutexes"}, {"lease", "lock.lease_name", "name", "/leases"}, {"throttle", "lock.throttled_resource", "resource_id", "/throttles"},
		{"timeout", "lock.timeout", "task_id", "/timeouts"}, {"time slot", "lock.time_slot", "task_id", "/slots"}, {"rate limit", "lock.rate_limit", "limit_id", "/limits"},
	} {
		found, err := v.rows(fmt.Sprintf("select %s as name from %s where %[1]s like $1::text order by %[1]s limit $2", kind.id, kind.table), pattern(v.q), few)
		if err != nil {
			return err
		}
		for i, row := range found {
			c := cell{Text: text(row["name"]), Href: v.Link(kind.path, "q", text(row["name"]))}
			if i == few-1 {
				c = cell{Text: "further ones", Href: v.Link(kind.path, "q", v.q)}
			}
			t.Rows = append(t.Rows, []cell{{Text: kind.what}, c, {}})
		}
	}
	found, err := v.rows("select id, queue_id from lock.task where id like $1::text order by id, queue_id limit $2", pattern(v.q), few)
	if err != nil {
		return err
	}
	for i, row := range found {
		c := cell{Text: text(row["id"]), Href: v.Link("/task", "queue", text(row["queue_id"]), "id", text(row["id"]))}
		queue := show(row["queue_id"])
		if i == few-1 {
			c, queue = cell{Text: "further ones", Href: v.Link("/tasks", "q", v.q)}, cell{}
		}
		t.Rows = append(t.Rows, []cell{{Text: "task"}, c, queue})
	}
	found, err = v.rows(`
		select kind, queue_id
		from (`+allQueues+`) as queue
		where queue_id like $1::text or kind = 'request' and (
			exists (select from lock.request where request.queue_id = queue.queue_id and request.entity_id = $2::text and request.settled_at is not null)
			or exists (select from lock.request where request.queue_id = queue.queue_id and request.entity_id = $2::text and request.settled_at is null)
		)
		order by kind, queue_id`, pattern(v.q), v.q)
	if err != nil {
		return err
	}
	for _, row := range found {
		queue := text(row["queue_id"])
		if strings.HasPrefix(queue, v.q) {
			t.Rows = append(t.Rows, []cell{{Text: "queue of " + text(row["kind"]) + "s"}, {Text: queue, Href: v.Link("/queues", "q", queue)}, {}})
		}
		if row["kind"] == "request" {
			has, err := v.rows(`select from lock.request where request.queue_id = $1::text and request.entity_id = $2::text and request.settled_at is not null
				union all select from lock.request where request.queue_id = $1::text and request.entity_id = $2::text and request.settled_at is null limit 1`, queue, v.q)
			if err != nil {
				return err
			}
			if len(has) > 0 {
				t.Rows = append(t.Rows, []cell{{Text: "entity"}, {Text: v.q, Href: v.Link("/entity", "queue", queue, "id", v.q)}, {Text: queue}})
			}
		}
	}
	v.add(section{Table: t})

	v.add(section{Heading: "Keys", Note: "A key needs no table: each name is one, and nobody may be using it.", Links: []cell{{Text: "The key of this name", Href: v.Link("/key", "name", v.q)}}})
	if _, err := strconv.ParseInt(v.q, 10, 64); err == nil {
		s := &v.Sections[len(v.Sections)-1]
		s.Links = append(s.Links, cell{Text: "The key of this number", Href: v.Link("/key", "key", v.q)})
	}
	return nil
}
