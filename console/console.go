// Package console is a web page for those who look after the locks: what is wrong, who is in the way, and what may be done about it.
//
// Handler shows it under a prefix of an own service; the program locks serves it alone. It reads as a role that
// lock.grant_monitor_to made, and changes nothing without Options.Actions.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are for Handler. Nil and the zero value are good.
type Options struct {
	// Prefix is the path that the console is mounted under, such as "/locks", and which its links begin with. Default: none.
	Prefix string
	// Actions is a pool of a role that lock.grant_operator_to made: with it the pages offer what an operator may do.
	// Default: nil; the pages only show.
	Actions *pgxpool.Pool
	// Operator tells who asks, for the ledger; "": nobody who may act. It has to have been proved before. Default: nobody.
	Operator func(*http.Request) string
}

// Handler shows the locks of the database that pool is connected to. Whoever reaches it may look: put it behind what your service proves
// people by. A page is read in at most five seconds, also when nobody answers: in one read-only transaction, and the first page asks
// lock.check() in a second one. What a page cannot have is an HTTP status from 400 on with the server's message. On the first page that
// is said in the place of the one section that took too long, or that somebody's lock on a table holds up. An action waits for locks for
// at most five seconds, and for answers ten. Handler starts nothing in the background.
func Handler(pool *pgxpool.Pool, options *Options) http.Handler {
	h := &handler{pool: pool, checking: make(chan struct{}, 1)}
	if options != nil {
		h.Options = *options
	}
	h.Prefix = strings.TrimSuffix(h.Prefix, "/")
	mux := http.NewServeMux()
	mux.Handle("GET /assets/", http.FileServerFS(assets))
	for path, show := range pages() {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, show) })
	}
	mux.HandleFunc("GET /act", func(w http.ResponseWriter, r *http.Request) { h.ask(w, r, nil) })
	mux.HandleFunc("POST /act", h.act)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, failure{status: http.StatusNotFound, text: "There is no such page."})
	})
	return http.StripPrefix(h.Prefix, harden(http.NewCrossOriginProtection().Handler(mux)))
}

type handler struct {
	Options
	pool *pgxpool.Pool

	checking chan struct{} // has one who asks lock.check()
	checked  time.Time
	findings []map[string]any
}

// harden keeps pages out of caches and frames, and lets them load nothing from elsewhere.
func harden(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// A failure is what the reader is told instead of a page.
type failure struct {
	status     int
	text, hint string
	late       bool // what it is about took too long; the rest of the page may do better
}

func (f failure) Error() string { return f.text }

// explain turns an error into what the reader is told.
func explain(err error) failure {
	var f failure
	var server *pgconn.PgError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &server):
		f = failure{status: http.StatusUnprocessableEntity, text: fmt.Sprintf("The database says: %s (%s)", server.Message, server.Code), hint: server.Hint}
		switch server.Code {
		case "42501":
			f.status, f.hint = http.StatusForbidden, "The owner of schema lock calls lock.grant_monitor_to for the role that the console reads as. Actions need lock.grant_operator_to."
		case "3F000", "42P01", "42883":
			f.status, f.hint = http.StatusServiceUnavailable, "Is this the right database, and are its migrations as new as the console?"
		case "57014", "55P03":
			f.status, f.late = http.StatusServiceUnavailable, true
		}
		return f
	case errors.Is(err, context.DeadlineExceeded):
		return failure{status: http.StatusServiceUnavailable, text: "The database has not answered in time.", late: true}
	}
	return failure{status: http.StatusServiceUnavailable, text: "The database cannot be reached: " + err.Error()}
}

// A page is what a template shows.
type page struct {
	Title    string
	About    string
	Sections []section
	Healthy  bool
	Filter   *filter
	Act      *question
	Failed   *failure
	Done     bool

	h    *handler
	Path string
	Now  time.Time
	q    string
}

type section struct {
	Heading, Note string
	Failed        *failure
	Tree          []*node
	Table         *table
	Facts         []fact
	Links         []cell
}

type table struct {
	Columns []string
	Rows    [][]cell
	None    string
	Next    string
}

type fact struct {
	Name  string
	Value cell
}

// A cell is a value that is shown: a text or a time, perhaps with a link, perhaps marked.
type cell struct {
	Text, Href, Mark string
	Time             time.Time
	Act              bool
}

type filter struct {
	Fields []field
}

type field struct {
	Name, Label, Value string
	Choices            []choice
}

type choice struct{ Value, Label string }

// A view is what the function of a page gets.
type view struct {
	*page
	ctx   context.Context
	tx    pgx.Tx
	query url.Values
}

const (
	patience = 5 * time.Second // with the database, for a page
	deed     = 2 * patience    // for an action, which may wait for locks as long as a page may take
)

func (h *handler) serve(w http.ResponseWriter, r *http.Request, show func(*view) error) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	p := h.page(r)
	v := &view{page: p, ctx: ctx, query: r.URL.Query()}
	err := h.read(v, show)
	if err == nil && p.Path == "/" {
		err = v.last()
	}
	if err != nil {
		h.fail(w, r, explain(err))
		return
	}
	h.render(w, p, http.StatusOK)
}

// read shows a page in one transaction.
func (h *handler) read(v *view, show func(*view) error) error {
	tx, err := h.pool.BeginTx(v.ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(v.ctx)
	// What is read lies in an index: without one the planner may think that a small table is read faster from end to end.
	for _, set := range []string{"statement_timeout = '4s'", "lock_timeout = '1s'", "jit = off", "enable_seqscan = off", "enable_bitmapscan = off"} {
		if _, err := tx.Exec(v.ctx, "set local "+set); err != nil {
			return err
		}
	}
	if err := tx.QueryRow(v.ctx, "select clock_timestamp()").Scan(&v.Now); err != nil {
		return err
	}
	v.tx = tx
	return show(v)
}

// part adds a part of the page that may take too long for itself: then that is said in its place.
func (v *view) part(heading string, look func(*view) error) error {
	shown := len(v.Sections)
	err := pgx.BeginFunc(v.ctx, v.tx, func(tx pgx.Tx) error {
		part := *v
		part.tx = tx
		return look(&part)
	})
	return v.without(heading, shown, err)
}

// without takes back what was shown of a part that took too long.
func (v *view) without(heading string, shown int, err error) error {
	if err == nil {
		return nil
	}
	if v.ctx.Err() != nil {
		err = v.ctx.Err() // and the connection is closed
	}
	f := explain(err)
	if !f.late {
		return err
	}
	v.Sections = append(v.Sections[:shown], section{Heading: heading, Failed: &f})
	return nil
}

func (h *handler) page(r *http.Request) *page {
	return &page{h: h, Path: r.URL.Path, Now: time.Now(), Done: r.URL.Query().Has("done"), q: r.URL.Query().Get("q")}
}

func (h *handler) fail(w http.ResponseWriter, r *http.Request, f failure) {
	p := h.page(r)
	p.Title, p.Failed = "This page cannot be shown", &f
	h.render(w, p, f.status)
}

func (h *handler) render(w http.ResponseWriter, p *page, status int) {
	var out bytes.Buffer
	if err := layout.Execute(&out, p); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(out.Bytes())
}

var (
	//go:embed assets
	assets embed.FS
	//go:embed layout.html
	layoutText string
	layout     = template.Must(template.New("layout").Parse(layoutText))
)

// Link is the address of a page of the console: its path, then names and values of its query; an empty value is left out.
func (p *page) Link(path string, query ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if query[i+1] != "" {
			values.Set(query[i], query[i+1])
		}
	}
	address := p.h.Prefix + path
	if len(values) > 0 {
		address += "?" + values.Encode()
	}
	return address
}

// Menu lists the pages, with their paths.
func (p *page) Menu() []choice {
	return []choice{
		{"/", "What is wrong"}, {"/keys", "Keys"}, {"/mutexes", "Mutexes"}, {"/leases", "Leases"}, {"/throttles", "Throttles"}, {"/limits", "Rate limits"}, {"/timeouts", "Timeouts"},
		{"/slots", "Slots"}, {"/queues", "Queues"}, {"/tasks", "Tasks"}, {"/requests", "Requests"}, {"/ledger", "Ledger"},
	}
}

// Wanted is what was searched for.
func (p *page) Wanted() string {
	if p.Path == "/search" {
		return p.q
	}
	return ""
}

// Live says that the page may be loaded again by itself.
func (p *page) Live() bool { return p.Act == nil }

// Ago is a time as people say it.
func (p *page) Ago(t time.Time) string {
	d := p.Now.Sub(t)
	if d.Abs() < time.Second {
		return "now"
	}
	if d < 0 {
		return "in " + span(-d)
	}
	return span(d) + " ago"
}

// Exact is a time to the second, in UTC.
func (p *page) Exact(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// span is a length of time, to one unit below 10 of it to a second one.
func span(d time.Duration) string {
	units := []struct {
		length time.Duration
		name   string
	}{{365 * 24 * time.Hour, "y"}, {24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	for i, unit := range units {
		n := d / unit.length
		if n == 0 {
			continue
		}
		if text := fmt.Sprintf("%d %s", n, unit.name); i+1 == len(units) || n >= 10 || (d%unit.length)/units[i+1].length == 0 {
			return text
		} else {
			return fmt.Sprintf("%s %d %s", text, (d%unit.length)/units[i+1].length, units[i+1].name)
		}
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
