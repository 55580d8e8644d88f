package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/xuri/excelize/v2"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

var ctx = context.Background()

const patience = 30 * time.Second

// address is the server that the tests use; why says why there is none.
var (
	address string
	why     error
)

// TestMain is also the front ends and back ends that the tests start, the broken ones included.
func TestMain(m *testing.M) {
	if command := os.Args[1:]; len(command) > 0 {
		if b, ok := broken[command[0]]; ok {
			workBroken(b.spoil, command[2])
			os.Exit(0)
		} else if command[0] == "front" || command[0] == "back" {
			main()
			os.Exit(0)
		}
	}
	stop := func() error { return nil } // a server that is not ours
	if address = os.Getenv("LOCKS_DEMO_URL"); address == "" {
		address, stop, why = throwaway()
		if errors.Is(why, errNoServer) {
			stop = func() error { return nil }
		} else if why != nil {
			fmt.Println(why)
			os.Exit(1)
		}
	}
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Println("the server did not stop:", err)
		code = 1
	}
	os.Exit(code)
}

type handler = func(ctx context.Context, tx pgx.Tx, batch []db.Request) error

// broken are back ends with a bug, and what must be said about the bug.
var broken = map[string]struct {
	spoil func(handle handler) handler
	want  string
}{
	"newest-first": {func(handle handler) handler {
		return func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			batch = slices.Clone(batch)
			slices.Reverse(batch)
			return handle(ctx, tx, batch)
		}
	}, `budget: B\d+ holds ".*", and should hold ".*"`},
	"forgetful": {func(handle handler) handler {
		return func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			return handle(ctx, tx, batch[:max(1, len(batch)-1)])
		}
	}, `budget: B\d+ holds ".*", and should hold ".*"`},
	"settles-twice": {func(handle handler) handler {
		return func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			if err := handle(ctx, tx, batch); err != nil || batch[0].Tries > 1 {
				return err
			}
			return locks.RetryAfter(time.Millisecond, errors.New("once more"))
		}
	}, `request \d+ was tried 2 times`},
	"writes-when-done": {func(handle handler) handler { // So that the victim has not yet written when it is killed.
		return func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			if _, err := tx.Exec(ctx, "select from spreadsheets.sheet where sheet_id = $1 for update", batch[0].EntityID); err != nil {
				return err
			}
			return handle(ctx, tx, batch)
		}
	}, `0 files are of no settled batch, and it should be 1`},
}

// workBroken is the command back with a bug.
func workBroken(spoil func(handler) handler, files string) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err == nil {
		err = locks.WorkRequests(ctx, pool, queue, spoil((&back{files: files}).handle), &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second}})
	}
	if !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestPlay(t *testing.T) {
	t.Parallel()
	needServer(t)
	t.Run("ends well though a back end is killed in the middle", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		must(t, play(ctx, address, "back", &out))
		for _, line := range []string{
			`back \d has written the next version of the budget, and is about to commit it`, `back \d is killed \(kill -9\)`,
			`budget +a create, and 90 updates in \d+ batches: .*\b50\n`, `team +a create, and 50 updates`, `every request was settled once`,
		} {
			if !regexp.MustCompile(line).Match(out.Bytes()) {
				t.Errorf("no line %q in:\n%s", line, out.String())
			}
		}
	})
	for name, b := range broken {
		t.Run("sees that a back end is "+name, func(t *testing.T) {
			t.Parallel()
			err := play(ctx, address, name, io.Discard)
			if err == nil || !regexp.MustCompile(b.want).MatchString(err.Error()) {
				t.Errorf("%v, and it should say %q", err, b.want)
			}
		})
	}
}

func TestCheckHistory(t *testing.T) {
	t.Parallel()
	at := func(second int) *time.Time { at := time.Unix(int64(second), 0); return &at }
	wanted := []asked{{1, nil}, {2, &update{"A1", "x"}}, {4, &update{"A1", "y"}}, {5, &update{"A2", 3.5}}}
	history := func() []requestStatus {
		return []requestStatus{
			{Request: 1, Type: "create", Status: "complete", Process: "p", Tries: 1, Settled: at(1)},
			{Request: 2, Type: "update", Update: []byte(`{"cell": "A1", "value": "x"}`), Status: "complete", Process: "q", Tries: 1, Settled: at(2)},
			{Request: 4, Type: "update", Update: []byte(`{"cell": "A1", "value": "y"}`), Status: "complete", Process: "q", Tries: 1, Settled: at(2)},
			{Request: 5, Type: "update", Update: []byte(`{"cell": "A2", "value": 3.5}`), Status: "complete", Process: "r", Tries: 1, Settled: at(3)},
		}
	}
	if problems := checkHistory(wanted, history()); len(problems) > 0 {
		t.Errorf("nothing is wrong, but: %q", problems)
	}
	for name, c := range map[string]struct {
		spoil func(h []requestStatus) []requestStatus
		want  string
	}{
		"a lost request":        {func(h []requestStatus) []requestStatus { return h[:3] }, "the history has 3 requests, and 4 were made"},
		"another's payload":     {func(h []requestStatus) []requestStatus { h[3].Update = h[2].Update; return h }, `request 5 is update {"cell":"A1","value":"y"}, and should be`},
		"an error":              {func(h []requestStatus) []requestStatus { h[2].Status = "error"; return h }, "request 4 is error"},
		"a leftover":            {func(h []requestStatus) []requestStatus { h[2].Status = "in-progress"; return h }, "request 4 is in-progress"},
		"two settlements":       {func(h []requestStatus) []requestStatus { h[1].Tries = 2; return h }, "request 2 was tried 2 times"},
		"a create with updates": {func(h []requestStatus) []requestStatus { h[1].Process = "p"; return h }, "request 2 was worked on together with the create"},
		"a torn batch":          {func(h []requestStatus) []requestStatus { h[3].Process = "p"; return h }, "request 5 was worked on together with others from before request 4"},
		"the wrong order":       {func(h []requestStatus) []requestStatus { h[3].Settled = at(1); return h }, "request 5 was settled before request 4"},
	} {
		problems := checkHistory(wanted, c.spoil(history()))
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, c.want) }) {
			t.Errorf("%s: %q, and it should say %q", name, problems, c.want)
		}
	}
}

// A back end that lost its connection without noticing, and writes after others have done its batch and the next one, must not
// overwrite what they wrote. One that writes into one file a sheet does.
func TestLateBackEnd(t *testing.T) {
	t.Parallel()
	needServer(t)
	for name, c := range map[string]struct {
		handle func(files string) handler
		want   string
	}{
		"spoils nothing":                        {func(files string) handler { return (&back{files: files}).handle }, "second"},
		"would overwrite a file that has a use": {handleInPlace, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			handle := c.handle(s.files)
			s.put("create", "sheet", nil)
			stop := s.work(handle)
			s.empty()
			stop()

			s.put("update", "sheet", []byte(`{"cell": "B1", "value": "first"}`))
			late := &lateTx{read: make(chan bool), goOn: make(chan bool)}
			ended := make(chan error, 1)
			stop = s.work(func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
				if late.Tx != nil {
					return handle(ctx, tx, batch)
				}
				late.Tx = tx
				err := handle(ctx, late, batch)
				ended <- err
				return err
			})
			defer stop()
			goOn := sync.OnceFunc(func() { close(late.goOn) })
			defer goOn()
			select {
			case <-late.read:
			case err := <-ended:
				t.Fatalf("the late one ended before it read: %v", err)
			case <-time.After(patience):
				t.Fatal("no back end reads")
			}
			var killed int
			must(t, s.admin.QueryRow(ctx, "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'").Scan(&killed))
			if killed != 1 {
				t.Fatalf("%d transactions are open, and it should be the late one's", killed)
			}
			defer s.work(handle)()
			s.empty()
			s.put("update", "sheet", []byte(`{"cell": "B1", "value": "second"}`))
			s.empty()
			goOn()
			if err := soon(t, "the late one ends", ended); err == nil {
				t.Fatal("the late one did not notice")
			}
			if got := s.cells("sheet")["B1"]; got != c.want {
				t.Errorf("B1 holds %q, and it should be %q", got, c.want)
			}
		})
	}
}

// handleInPlace is a back end with one file a sheet, which it replaces.
func handleInPlace(files string) handler {
	return func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
		path := filepath.Join(files, batch[0].EntityID+".xlsx")
		if batch[0].RequestType == "create" {
			_, err := tx.Exec(ctx, "insert into spreadsheets.sheet (sheet_id, file) values ($1, $2)", batch[0].EntityID, filepath.Base(path))
			return errors.Join(err, excelize.NewFile().SaveAs(path))
		}
		book, err := excelize.OpenFile(path)
		if err != nil {
			return err
		}
		defer book.Close()
		var file string
		if err := tx.QueryRow(ctx, "select file from spreadsheets.sheet where sheet_id = $1", batch[0].EntityID).Scan(&file); err != nil {
			return err
		}
		for _, request := range batch {
			u, err := updateOf(request.Payload)
			if err != nil {
				return err
			}
			if err := book.SetCellValue(page, u.Cell, u.Value); err != nil {
				return err
			}
		}
		own := filepath.Join(files, version(batch[0].ProcessID))
		if err := book.SaveAs(own); err != nil {
			return err
		}
		if err := os.Rename(own, path); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "select")
		return err
	}
}

// A lateTx stops behind the first row that is read from it, until it may go on.
type lateTx struct {
	pgx.Tx
	read, goOn chan bool
}

func (l *lateTx) QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row {
	return lateRow{l.Tx.QueryRow(ctx, sql, arguments...), l}
}

type lateRow struct {
	pgx.Row
	late *lateTx
}

func (r lateRow) Scan(into ...any) error {
	err := r.Row.Scan(into...)
	close(r.late.read)
	<-r.late.goOn
	return err
}

func TestBackEnd(t *testing.T) {
	t.Parallel()
	needServer(t)

	t.Run("settles as error what cannot be done, and leaves the sheet alone", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		s.put("create", "sheet", nil)
		s.put("update", "sheet", []byte(`{"cell": "B1", "value": "kept"}`))
		defer s.work((&back{files: s.files}).handle)()
		s.empty()
		for _, c := range []struct{ sheet, payload, want string }{
			{"sheet", `{"cell": "B0", "value": 1}`, `"B0" is not a cell such as B2`},
			{"sheet", `{"cell": "B2", "value": [1]}`, "value must be a text"},
			{"sheet", `null`, `"" is not a cell such as B2`},
			{"sheet", `7`, "the payload is not an update"},
			{"nobody asked for this one", `{"cell": "B2", "value": 1}`, "there is no such sheet"},
		} {
			s.put("update", c.sheet, []byte(c.payload))
			s.empty()
			last := s.history(c.sheet)[0]
			if last.RequestStatus != "error" || last.Message == nil || !strings.Contains(*last.Message, c.want) {
				t.Errorf("%s: %s, %v; it should say %q", c.payload, last.RequestStatus, last.Message, c.want)
			}
		}
		if cells := s.cells("sheet"); !maps.Equal(cells, map[string]string{"B1": "kept"}) {
			t.Errorf("the sheet holds %v", cells)
		}
	})

	t.Run("tries again when the disk fails", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		must(t, os.Remove(s.files))
		s.put("create", "sheet", nil)
		defer s.work((&back{files: s.files}).handle)()
		must(t, s.eventually(ctx, "the create is put back", func() (bool, error) {
			r := s.history("sheet")[0]
			return r.RequestStatus == "new" && r.Tries > 0 && strings.Contains(*r.Message, "no such file"), nil
		}))
		must(t, os.Mkdir(s.files, 0o755))
		s.empty()
		if r := s.history("sheet")[0]; r.RequestStatus != "complete" {
			t.Errorf("%s: %v", r.RequestStatus, r.Message)
		}
	})
}

func TestCells(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wanted []asked
	add := func(base, file string, updates ...update) {
		t.Helper()
		for i := range updates {
			must(t, updates[i].check())
			wanted = append(wanted, asked{update: &updates[i]})
		}
		must(t, writeVersion(dir, base, file, updates))
	}
	var updates []update
	for i, value := range []any{
		"plain", "last wins", "to be emptied", " spaces ", "=1+1", "_x004_", "<&>\"'", "two\nlines\tand a tab", "grüße, 漢字, 😀", "007", "1e3", "TRUE",
		strings.Repeat("x", excelize.TotalCellChars), strings.Repeat("😀", excelize.TotalCellChars/2), true, false, 0.1, 1e300, -0.5, 12345678901.25, float64(0),
	} {
		updates = append(updates, update{Cell: fmt.Sprintf("b%d", i+1), Value: value})
	}
	add("", "1.xlsx", updates...)
	add("1.xlsx", "2.xlsx", update{"B2", "a"}, update{"$B$2", "b"}, update{"B3", nil})
	file, err := os.ReadFile(filepath.Join(dir, "2.xlsx"))
	must(t, err)
	cells, err := cellsOf(file)
	must(t, err)
	for _, problem := range checkCells(wanted, cells) {
		t.Errorf("%.200s", problem)
	}

	cells["B2"] = "a"
	cells["C1"] = "from nowhere"
	if problems := checkCells(wanted, cells); len(problems) != 2 || problems[0] != `B2 holds "a", and should hold "b"` || problems[1] != `C1 holds "from nowhere", and nobody asked for that` {
		t.Errorf("what is said of two planted cells: %q", problems)
	}
	for _, value := range []any{"\x00", "a\rb", "\u0085", "\ufffe", "_x0041_", []any{1.0}, map[string]any{}, strings.Repeat("😀", excelize.TotalCellChars/2+1)} {
		if u := (update{"B1", value}); u.check() == nil {
			t.Errorf("%.40q is not refused", value)
		}
	}
	if err := writeVersion(dir, "", "2.xlsx", nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("a version is written twice: %v", err)
	}
}

func TestFront(t *testing.T) {
	t.Parallel()
	needServer(t)
	s := open(t)
	front := httptest.NewServer((&front{pool: s.pool, files: s.files}).routes())
	defer front.Close()
	s.front = front.URL

	count := func() (requests int) {
		t.Helper()
		must(t, s.admin.QueryRow(ctx, "select count(*) from lock.request").Scan(&requests))
		return requests
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/sheets", `{"id": "one"}`, 202, `{"request":1}`},
		{"POST", "/sheets", `{"id": "one"}`, 409, "the sheet exists already"},
		{"POST", "/sheets", `{"id": ""}`, 400, "entity_id must not be empty"},
		{"POST", "/sheets", `{}`, 400, "entity_id must not be empty"},
		{"POST", "/sheets", `{"id": "` + strings.Repeat("x", 1025) + `"}`, 400, "1025 bytes long, and at most 1024 are allowed. Use a shorter text"},
		{"POST", "/sheets", `{"id": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "too large"},
		{"POST", "/sheets", `{"id": "a\u0000b"}`, 400, "invalid byte sequence"},
		{"POST", "/sheets", `{"id": ".."}`, 400, "no address can hold the id .."},
		{"POST", "/sheets", `{"id": 7}`, 400, "the body is not the JSON that is wanted"},
		{"POST", "/sheets", `{"id": "x"`, 400, "the body is not the JSON that is wanted"},
		{"POST", "/sheets", `{"id": "x"} {"id": "y"}`, 400, "more than one value"},
		{"POST", "/sheets", `{"name": "x"}`, 400, "unknown field"},
		{"POST", "/sheets", ``, 400, "the body is not the JSON that is wanted"},
		{"POST", "/sheets/one/updates", `{"cell": "$b$2", "value": 7}`, 202, `{"request":`},
		{"POST", "/sheets/none/updates", `{"cell": "B2", "value": 7}`, 404, "there is no such sheet"},
		{"POST", "/sheets/one/updates", `{"cell": "B2", "value": {"a": 1}}`, 400, "value must be a text, a number"},
		{"POST", "/sheets/one/updates", `{"cell": "B2", "value": 1e999}`, 400, "the body is not the JSON that is wanted"},
		{"POST", "/sheets/one/updates", `{"cell": "B2", "value": "a\u0000"}`, 400, "control characters"},
		{"POST", "/sheets/one/updates", `{"cell": "B2", "value": "` + strings.Repeat("x", excelize.TotalCellChars+1) + `"}`, 400, "the text has 32768 characters, and a cell holds 32767"},
		{"POST", "/sheets/one/updates", `{"cell": "B0", "value": 7}`, 400, `\"B0\" is not a cell such as B2`},
		{"POST", "/sheets/one/updates", `{"cell": "XFE1", "value": 7}`, 400, `is not a cell`},
		{"POST", "/sheets/one/updates", `{"value": 7}`, 400, `is not a cell`},
		{"POST", "/sheets/" + strings.Repeat("x", 1025) + "/updates", `{"cell": "B2"}`, 400, "at most 1024 are allowed"},
		{"POST", "/sheets/a%FFb/updates", `{"cell": "B2"}`, 400, "invalid byte sequence"},
		{"GET", "/sheets/one", ``, 200, `"update":{"cell":"B2","value":7},"status":"new"`},
		{"GET", "/sheets/none", ``, 404, "there is no such sheet"},
		{"GET", "/sheets/one?max=0", ``, 400, "max must be at least 1"},
		{"GET", "/sheets/one?max=many", ``, 400, "max must be a number"},
		{"GET", "/sheets/one?max=-1", ``, 400, "max must be at least 1"},
		{"GET", "/sheets/one?max=-4294967295", ``, 400, "max must be a number"},
		{"GET", "/sheets/one?max=9999999999", ``, 400, "max must be a number"},
		{"GET", "/sheets/one/file", ``, 404, "there is no such sheet, or not yet"},
		{"DELETE", "/sheets/one", ``, 405, ""},
		{"GET", "/", ``, 404, ""},
	} {
		before := count()
		request, err := http.NewRequest(c.method, s.front+c.path, strings.NewReader(c.body))
		must(t, err)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		must(t, err)
		made := 0
		if c.status == 202 {
			made = 1
		}
		if response.StatusCode != c.status || !strings.Contains(string(text), c.want) || count()-before != made {
			t.Errorf("%s %.40s %.60s: %d %s, %d requests made; it should be %d %q", c.method, c.path, c.body, response.StatusCode, text, count()-before, c.status, c.want)
		}
	}

	t.Run("takes any other id", func(t *testing.T) {
		defer s.work((&back{files: s.files}).handle)()
		for _, id := range []string{"a/b", "a//b", "../../etc/passwd", "grüße 😀?#%41", " ", strings.Repeat("é", 512)} {
			must(t, s.create(ctx, id))
			s.empty()
			if cells := s.cells(id); len(cells) != 0 {
				t.Errorf("%q holds %v", id, cells)
			}
			if files, err := os.ReadDir(s.files); err != nil || slices.ContainsFunc(files, func(f os.DirEntry) bool { return f.IsDir() }) {
				t.Errorf("%q: %v %v", id, files, err)
			}
		}
	})
}

// A tester is a stage for tests in this process.
type tester struct {
	*stage
	t    *testing.T
	pool *pgxpool.Pool // as the processes would connect
}

func open(t *testing.T) *tester {
	t.Helper()
	s, err := openStage(ctx, address)
	must(t, err)
	t.Cleanup(func() { must(t, s.close()) })
	pool, err := pgxpool.New(ctx, s.app)
	must(t, err)
	t.Cleanup(pool.Close)
	return &tester{s, t, pool}
}

func (s *tester) put(kind db.RequestType, sheet string, payload []byte) {
	s.t.Helper()
	_, err := db.New(s.pool).Enqueue(ctx, db.EnqueueParams{RequestType: kind, EntityID: sheet, Payload: payload, QueueID: queue})
	must(s.t, err)
}

// work runs a worker of its own until the returned function is called.
func (s *tester) work(handle handler) (stop func()) {
	s.t.Helper()
	pool, err := pgxpool.New(ctx, s.app)
	must(s.t, err)
	inner, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- locks.WorkRequests(inner, pool, queue, handle, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second}})
	}()
	return func() {
		s.t.Helper()
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				s.t.Errorf("WorkRequests: %v", err)
			}
			pool.Close()
		case <-time.After(patience):
			s.t.Error("WorkRequests does not end with its context")
		}
	}
}

// empty waits until nothing is left to do.
func (s *tester) empty() {
	s.t.Helper()
	must(s.t, s.settled(ctx, 0))
}

func (s *tester) history(sheet string) []db.Request {
	s.t.Helper()
	requests, err := db.New(s.pool).RequestHistory(ctx, db.RequestHistoryParams{EntityID: sheet, QueueID: queue, Max: 100})
	must(s.t, err)
	return requests
}

// cells downloads a sheet and reads it.
func (s *tester) cells(sheet string) map[string]string {
	s.t.Helper()
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("GET", "/", nil)
	request.SetPathValue("id", sheet)
	(&front{pool: s.pool, files: s.files}).download(recorder, request)
	cells, err := cellsOf(recorder.Body.Bytes())
	if err != nil {
		s.t.Fatalf("%d %v: %v", recorder.Code, recorder.Body, err)
	}
	return cells
}

// soon receives what must come within patience.
func soon[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return value
}

func needServer(t *testing.T) {
	t.Helper()
	if why != nil {
		t.Skip(why)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
