package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"
)

// An action is what an operator may do.
type action struct {
	title, consequence, button string
	values                     []choice // the names of what is acted on, and what they are called
	sql                        string   // its last value: done or not; $1 is the reason, with the operator's name, then come the values
	recorded                   string   // for the ledger, where sql does not write it: its kind, id and previous state, of the same parameters
}

// Each runs in one transaction with its line in the ledger.
var actions = map[string]action{
	"release-mutex": {title: "Force release a mutex", button: "Release it", values: []choice{{"id", "Mutex"}},
		consequence: "The next caller acquires it. Its holder may still be at work.", sql: "select lock.force_release_mutex($2::text, $1)"},
	"release-timeout": {title: "Force release a timeout", button: "Release it", values: []choice{{"id", "Timeout"}},
		consequence: "It can be acquired at once, before its interval has passed.", sql: "select lock.force_release_timeout($2::text, $1)"},
	"release-slot": {title: "Forget a time slot", button: "Forget it", values: []choice{{"id", "Task"}},
		consequence: "Any slot can be taken next, also one that was granted before.", sql: "select lock.force_release_time_slot($2::text, $1)"},
	"release-throttle": {title: "Force release a throttled resource", button: "Release it", values: []choice{{"id", "Resource"}},
		consequence: "It can be locked at once, with all its permits.", sql: "select lock.force_release_throttled_resource($2::text, $1)"},
	"release-limit": {title: "Fill a rate limit", button: "Fill it", values: []choice{{"id", "Limit"}},
		consequence: "Its whole burst can be taken at once.", sql: "select lock.force_release_rate_limit($2::text, $1)"},
	"release-lease": {title: "Force release a lease", button: "Take it away", values: []choice{{"id", "Lease"}, {"token", "Token"}},
		consequence: "Its holder loses it: renewing and asserting it fail from now on.", sql: "select lock.force_release_lease($2::text, $3::text::bigint, $1)"},
	"retry-task": {title: "Retry a task", button: "Retry it", values: []choice{{"queue", "Queue"}, {"id", "Task"}},
		consequence: "It becomes new, with one capture ahead.", sql: "select lock.retry_task($3::text, 1, $2::text)",
		recorded: "'task', $2::text || ': ' || $3::text, jsonb_build_object('action', 'retry') || coalesce((select to_jsonb(task) from lock.get_task($3::text, $2::text) as task), '{}')"},
	"redrive": {title: "Redrive dead letters", button: "Redrive them", values: []choice{{"queue", "Queue"}},
		consequence: "At most 1000 dead letters of the queue, the oldest, become new, with one capture ahead each.", sql: "select lock.retry_tasks($2::text, 1, 1000) > 0",
		recorded: "'task', $2::text, jsonb_build_object('action', 'redrive')"},
	"pause": {title: "Pause a queue", button: "Pause it", values: []choice{{"kind", "Kind"}, {"queue", "Queue"}},
		consequence: "It gives nothing to anybody until it is resumed. What is captured goes on.", sql: "select lock.pause_queue($2::text, $3::text, $1)",
		recorded: "$2::text, $3::text, jsonb_build_object('action', 'pause')"},
	"resume": {title: "Resume a queue", button: "Resume it", values: []choice{{"kind", "Kind"}, {"queue", "Queue"}},
		consequence: "Its workers get what waits.", sql: "select lock.resume_queue($2::text, $3::text)",
		recorded: "$2::text, $3::text, jsonb_build_object('action', 'resume') || coalesce((select to_jsonb(queue_pause) from lock.queue_pause where queue_pause.kind = $2::text and queue_pause.queue_id = $3::text and queue_pause.resumed_at is null), '{}')"},
	"cancel-request": {title: "Cancel a request", button: "Cancel it", values: []choice{{"id", "Request"}, {"entity", "Entity"}},
		consequence: "It ends in error, and what waits behind it can be had. Nothing happens while a worker has the entity.", sql: "select lock.cancel_request($2::text::bigint, $1)"},
	"retry-request": {title: "Retry a request", button: "Enqueue it once more", values: []choice{{"id", "Request"}, {"entity", "Entity"}},
		consequence: "What it asked for becomes a new request at the end of its queue.", sql: "select lock.retry_request($2::text::bigint) is not null",
		recorded: "'request', coalesce((select request.queue_id || ': ' || request.entity_id from lock.request where request.request_id = $2::text::bigint), $3::text), jsonb_build_object('action', 'retry', 'request_id', $2::text::bigint)"},
}

// A question is what is asked before an action.
type question struct {
	Consequence, Button, Operator, Reason string
	Values                                []field
}

// wanted reads an action and its values from a request.
func (h *handler) wanted(r *http.Request) (a action, q *question, values []any, err error) {
	name := r.URL.Query().Get("do")
	a, known := actions[name]
	switch {
	case h.Actions == nil:
		return a, nil, nil, failure{status: http.StatusForbidden, text: "This console only shows.", hint: "locks console --allow-actions lets it act."}
	case !known:
		return a, nil, nil, failure{status: http.StatusNotFound, text: "There is no such action."}
	}
	q = &question{Consequence: a.consequence, Button: a.button, Reason: r.PostFormValue("reason")}
	if h.Operator != nil {
		q.Operator = h.Operator(r)
	}
	if q.Operator == "" {
		return a, nil, nil, failure{status: http.StatusForbidden, text: "Only an operator may act, and you are not known as one.", hint: "The ledger keeps who did it."}
	}
	for _, value := range a.values {
		given := r.URL.Query().Get(value.Value)
		if r.Method == http.MethodPost {
			given = r.PostFormValue(value.Value)
		}
		values = append(values, given)
		q.Values = append(q.Values, field{Name: value.Value, Label: value.Label, Value: given})
	}
	return a, q, values, nil
}

// ask shows what an action would do, and asks for the reason.
func (h *handler) ask(w http.ResponseWriter, r *http.Request, f *failure) {
	a, q, _, err := h.wanted(r)
	if err != nil {
		h.fail(w, r, explain(err))
		return
	}
	p := h.page(r)
	p.Title, p.Act, p.Failed = a.title, q, f
	status := http.StatusOK
	if f != nil {
		status = f.status
	}
	h.render(w, p, status)
}

// act does it, and writes the ledger's line in the same transaction.
func (h *handler) act(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	a, q, values, err := h.wanted(r)
	if err != nil {
		h.fail(w, r, explain(err))
		return
	}
	if !slices.ContainsFunc([]rune(q.Reason), func(c rune) bool { return c > ' ' }) {
		h.ask(w, r, &failure{status: http.StatusUnprocessableEntity, text: "Say why: the ledger keeps it."})
		return
	}
	if err := h.do(r.Context(), a, append([]any{pgx.QueryExecModeExec, q.Operator + ": " + q.Reason}, values...)); err != nil {
		f := explain(err)
		h.ask(w, r, &f)
		return
	}
	p := h.page(r)
	http.Redirect(w, r, p.Link("/ledger", "done", "1"), http.StatusSeeOther)
}

func (h *handler) do(ctx context.Context, a action, args []any) error {
	ctx, cancel := context.WithTimeout(ctx, deed)
	defer cancel()
	return pgx.BeginTxFunc(ctx, h.Actions, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local lock_timeout = '5s'"); err != nil {
			return err
		}
		if a.recorded != "" {
			if _, err := tx.Exec(ctx, "select lock.record_action(about.kind, about.id, $1, about.previous) from (select "+a.recorded+") as about (kind, id, previous)", args...); err != nil {
				return err
			}
		}
		// Not every action reads every parameter, and each has to have a type.
		sql := "select act.done from (" + a.sql + ") as act (done) where true"
		for i := 1; i < len(args); i++ {
			sql += fmt.Sprintf(" and $%d::text is not null", i)
		}
		var done bool
		if err := tx.QueryRow(ctx, sql, args...).Scan(&done); err != nil {
			return err
		}
		if !done {
			return failure{status: http.StatusConflict, text: "Nothing was done: it is not, or no longer, in a state for that.", hint: "Look at it once more."}
		}
		return nil
	})
}
