package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A tokenCall is what one call of lock.take said, and the server's clock around it, in microseconds.
type tokenCall struct {
	cost          int64
	before, after int64
	granted       bool
}

// A bucketRule is the limit that a history of calls was made under.
type bucketRule struct{ rate, per, burst int64 } // per in microseconds

// broken says how calls contradict a bucket: a window that was granted more than it may have been, whenever in their calls the grants
// were. In the order of their ends, a window is grants that stand side by side, and it is at most as long as from the earliest
// beginning of one of them, or of a later one, to the end of the last.
func (r bucketRule) broken(calls []tokenCall) string {
	var grants []tokenCall
	for _, c := range calls {
		if c.granted {
			grants = append(grants, c)
		}
	}
	sort.Slice(grants, func(i, j int) bool { return grants[i].after < grants[j].after })
	for i := len(grants) - 2; i >= 0; i-- {
		grants[i].before = min(grants[i].before, grants[i+1].before)
	}
	for first, from := range grants {
		total := int64(0)
		for _, to := range grants[first:] {
			total += to.cost
			if longest := to.after - from.before; (total-r.burst)*r.per > r.rate*longest {
				return fmt.Sprintf("%d tokens within at most %d us", total, longest)
			}
		}
	}
	return ""
}

const asksForTokens = `select granted, remaining, (extract(epoch from retry_after) * 1000000)::bigint from lock.take($1, $2, $3::bigint * interval '1 microsecond', $4, $5)`

// takers are clients that take from one bucket at the same time, each with costs of its own, and what they were told.
func takers(t *testing.T, e *env, clients int, lasting time.Duration, id string, r bucketRule, prepare string) []tokenCall {
	t.Helper()
	var mu sync.Mutex
	var all []tokenCall
	var group sync.WaitGroup
	end := time.Now().Add(lasting)
	for n := range clients {
		conn, err := pgx.Connect(ctx, e.super)
		must(t, err)
		_, err = conn.Exec(ctx, prepare)
		must(t, err)
		group.Go(func() {
			defer conn.Close(ctx)
			dice := rand.New(rand.NewPCG(uint64(n), 7))
			var mine []tokenCall
			for time.Now().Before(end) {
				c := tokenCall{cost: 1 + dice.Int64N(r.burst)}
				var remaining, after int64
				batch := &pgx.Batch{}
				clock := "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
				batch.Queue(clock).QueryRow(func(row pgx.Row) error { return row.Scan(&c.before) })
				batch.Queue(asksForTokens, id, r.rate, r.per, r.burst, c.cost).QueryRow(func(row pgx.Row) error { return row.Scan(&c.granted, &remaining, &after) })
				batch.Queue(clock).QueryRow(func(row pgx.Row) error { return row.Scan(&c.after) })
				if err := conn.SendBatch(ctx, batch).Close(); err != nil {
					t.Error(err)
					return
				}
				mine = append(mine, c)
			}
			mu.Lock()
			all = append(all, mine...)
			mu.Unlock()
		})
	}
	group.Wait()
	return all
}

// No window is granted more than the burst and what comes back within it; and calls that break the rule are seen to.
func TestRateLimitWindows(t *testing.T) {
	t.Parallel()
	rule := bucketRule{rate: 700, per: 300_000, burst: 40}
	const id = "a bucket"
	for _, c := range []struct {
		name    string
		pieces  []string // of lock.take, and what stands in their place
		prepare string
		broken  bool
	}{
		{name: "as it is"},
		{name: "a bucket that reads before it locks", broken: true, pieces: []string{
			"for no key update\n", "\n",
			"greatest(rate_limit.full_at, clock_timestamp()) + weight", "greatest(bucket.full_at, clock_timestamp()) + weight",
		}},
		{name: "a bucket that forgets the burst", broken: true, pieces: []string{"free.full_at - ahead <= clock_timestamp()", "free.full_at - ahead * 2 <= clock_timestamp()",
			"bucket.full_at - ahead > moment", "bucket.full_at - ahead * 2 > moment"}},
		{name: "a bucket whose clock goes back", broken: true, pieces: []string{
			"full_at = greatest(rate_limit.full_at, clock_timestamp()) + weight", "full_at = greatest(rate_limit.full_at, clock_timestamp()) + weight - (random() < 0.2)::integer * interval '30 milliseconds'",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			if c.pieces != nil {
				mutate(t, e, "take", c.pieces...)
			}
			lasting := 1500 * time.Millisecond
			for range 8 {
				calls := takers(t, e, 8, lasting, id, rule, "")
				granted, denied := 0, 0
				for _, call := range calls {
					if call.granted {
						granted++
					} else {
						denied++
					}
				}
				why := rule.broken(calls)
				t.Logf("%d granted, %d denied: %s", granted, denied, why)
				switch {
				case granted < 20 || denied < 20:
					t.Fatal("that proves nothing")
				case !c.broken && why != "":
					t.Fatal(why)
				case !c.broken || why != "":
					return
				}
			}
			t.Fatal("the checker caught nothing")
		})
	}
}

// With a clock that stands still: the same call is granted when retry_after has passed, and not a microsecond earlier.
func TestRateLimitRetryAfter(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	e.stopClock(t, "take")
	s := e.sessionAs(t, e.super)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type answer struct {
		granted          bool
		remaining, after int64
	}
	take := func(at int64, id string, r bucketRule, cost int64) (a answer) {
		t.Helper()
		s.exec("select set_config('test.clock', $1, false)", start.Add(time.Duration(at)*time.Microsecond).Format("2006-01-02 15:04:05.000000Z07:00"))
		must(t, s.conn.QueryRow(ctx, asksForTokens, id, r.rate, r.per, r.burst, cost).Scan(&a.granted, &a.remaining, &a.after))
		return a
	}
	undone := func(at int64, id string, r bucketRule, cost int64) answer {
		t.Helper()
		s.exec("begin")
		defer s.exec("rollback")
		return take(at, id, r, cost)
	}
	const second, day = 1_000_000, 86_400_000_000
	dice := rand.New(rand.NewPCG(31, 1))
	denied := 0
	for n, r := range []bucketRule{
		{10, second, 10}, {3, second, 3}, {3, second, 7}, {7, 1000, 100}, {60_000, 60 * second, 60_000}, {1, day, 1}, {100, second, 1},
		{87_654_321, 30 * day, 87_654_321}, {3_000_000_000, second, 3_000_000_000}, {2_999_999_999, 36525 * day, 2_999_999_999}, {2_999_999_999, 1, 3_000_000_000}, {1, 36525 * day, 1},
	} {
		id := strconv.Itoa(n)
		at, whole := int64(0), new(granted)
		for range 60 {
			if at > 5e15 { // 290 years is the longest time.Duration
				break
			}
			cost := 1 + dice.Int64N(r.burst)
			before := undone(at, id, r, cost)
			if !before.granted {
				denied++
				if before.after <= 0 {
					t.Fatalf("%v: denied, and to be tried after %d us", r, before.after)
				}
				if early := undone(at+before.after-1, id, r, cost); early.granted || early.after != 1 {
					t.Fatalf("%v: cost %d at %d: retry_after %d, and a microsecond earlier %v", r, cost, at, before.after, early)
				}
				if before.remaining >= cost {
					t.Fatalf("%v: cost %d is denied, and %d remain", r, cost, before.remaining)
				}
				at += before.after
			}
			now := take(at, id, r, cost)
			if !now.granted || now.after != 0 {
				t.Fatalf("%v: cost %d at %d: %v", r, cost, at, now)
			}
			whole.add(at, cost)
			// What remains can be taken, and not a token more, but for what a microsecond brings.
			if now.remaining > 0 && !undone(at, id, r, now.remaining).granted {
				t.Fatalf("%v: %d remain, and cannot be taken", r, now.remaining)
			}
			if more := now.remaining + 1 + r.rate/r.per; more <= r.burst && undone(at, id, r, more).granted {
				t.Fatalf("%v: %d remain, and %d can be taken", r, now.remaining, more)
			}
			if dice.IntN(3) == 0 {
				at += dice.Int64N(max(1, r.per/r.rate*r.burst))
			}
		}
		whole.check(t, r)
	}
	if denied < 200 {
		t.Fatalf("%d denials prove nothing", denied)
	}
}

// granted are grants at exact times.
type granted struct{ at, cost []int64 }

func (g *granted) add(at, cost int64) { g.at, g.cost = append(g.at, at), append(g.cost, cost) }

// check compares every window with the rule.
func (g *granted) check(t *testing.T, r bucketRule) {
	t.Helper()
	for i := range g.at {
		total := float64(0)
		for j := i; j < len(g.at); j++ {
			total += float64(g.cost[j])
			most := float64(r.burst) + float64(r.rate)*float64(g.at[j]-g.at[i])/float64(r.per)
			if total > most*(1+1e-12) {
				t.Fatalf("%v: %v tokens in %d us, at most %v", r, total, g.at[j]-g.at[i], most)
			}
		}
	}
}

// A clock that is set back grants nothing twice, and what is owed then is owed from then on.
func TestRateLimitClock(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	e.stopClock(t, "take")
	s := e.sessionAs(t, e.super)
	at := func(clock string) { s.exec("select set_config('test.clock', '2026-01-01 '||$1||'Z', false)", clock) }
	take := func(cost int) string {
		return get[string](s, "select concat_ws(' ', granted, remaining, retry_after) from lock.take('a', 60, '1 minute', 10, $1)", cost)
	}
	at("12:00:00")
	answers(s, "t 0 00:00:00", "select $1::text", take(10))
	at("11:59:30") // a step within the minute is waited out
	answers(s, "f 0 00:00:31", "select $1::text", take(1))
	at("11:00:00")
	stored := "select full_at::text || ' ' || taken_at from lock.rate_limit"
	s.exec("set timezone = 'UTC'")
	answers(s, "f 0 00:00:01", "select $1::text", take(1))
	answers(s, "2026-01-01 11:00:10+00 2026-01-01 11:00:00+00", stored)
	at("11:00:00.999999")
	answers(s, "f 0 00:00:00.000001", "select $1::text", take(1))
	at("11:00:01")
	answers(s, "t 0 00:00:00", "select $1::text", take(1))

	// While another transaction has the row, nobody waits for it: the answer is as if it were done.
	at("10:00:00")
	holder := e.sessionAs(t, e.super)
	holder.exec("begin; select from lock.rate_limit for update")
	answers(s, "f 0 00:00:01", "select $1::text", take(1))
	answers(s, "2026-01-01 11:00:11+00 2026-01-01 11:00:01+00", stored)
	holder.exec("rollback")
	answers(s, "f 0 00:00:01", "select $1::text", take(1))
	answers(s, "2026-01-01 10:00:10+00 2026-01-01 10:00:00+00", stored)
	// What is owed can be less than what a call leaves: it is granted behind the correction.
	at("10:00:05")
	answers(s, "t 4 00:00:00", "select $1::text", take(1))
	at("09:00:00")
	answers(s, "t 3 00:00:00", "select $1::text", take(1))
	answers(s, "2026-01-01 09:00:07+00 2026-01-01 09:00:00+00", stored)
}

func TestRateLimitArguments(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	for call, want := range map[string]string{
		"null, 1, '1 s'":                         "22004",
		"'', 1, '1 s'":                           "22023",
		"'a', null, '1 s'":                       "22004",
		"'a', 0, '1 s'":                          "22023",
		"'a', -1, '1 s'":                         "22023",
		"'a', 3000000001, '1 s'":                 "22023",
		"'a', 9223372036854775807, '1 s'":        "22023",
		"'a', 1, null":                           "22004",
		"'a', 1, '0'":                            "22023",
		"'a', 1, '-1 s'":                         "22023",
		"'a', 1, '1 month'":                      "22023",
		"'a', 1, '1 year'":                       "22023",
		"'a', 1, '1 month -29 days'":             "22023",
		"'a', 1, '36525 days 1 us'":              "22023",
		"'a', 1, '1 s', 0":                       "22023",
		"'a', 1, '1 s', -1":                      "22023",
		"'a', 1, '1 s', 9223372036854775807":     "22023",
		"'a', 1, '1 s', null, null":              "22004",
		"'a', 1, '1 s', null, 0":                 "22023",
		"'a', 1, '1 s', null, 2":                 "22023",
		"'a', 9, '1 s', 5, 6":                    "22023",
		"'a', 1, '1 s', 5, 9223372036854775807":  "22023",
		"'a', 1, '36525 days', 2":                "22023",
		"'a', 1, '1 day', 3000000000":            "22023",
		"'a', 2999999998, '36525 d', 2999999999": "22023",
	} {
		if pg := s.fails(want, "select lock.take("+call+")"); pg.Hint == "" {
			t.Errorf("lock.take(%s): no hint with %q", call, pg.Message)
		}
	}
	if target.number >= 170000 {
		s.fails("22023", "select lock.take('a', 1, 'infinity')")
	}
	answers(s, 0, "select count(*)::integer from lock.rate_limit_status")
	for _, call := range []string{
		"1, '1 s'", "3000000000, '1 us', 3000000000, 3000000000", "1, '36525 days'", "2999999999, '36525 days', 2999999999, 2999999999", "1, '1 s', null, 1",
	} {
		answers(s, true, "select granted and retry_after = '0' from lock.take('good '||$1, "+call+")", call)
	}
}

// The limits travel with the call, and what was granted under others counts.
func TestRateLimitChanges(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, "t 0", "select concat_ws(' ', granted, remaining) from lock.take('a', 10, '1 hour', cost => 10)")
	answers(s, "f 0", "select concat_ws(' ', granted, remaining) from lock.take('a', 10, '1 hour')")
	answers(s, true, "select not granted and remaining = 10 and retry_after between '44 minutes' and '45 minutes' from lock.take('a', 20, '1 hour', 30, 25)")
	answers(s, "10 01:00:00 10 0", "select concat_ws(' ', rate, per, burst, remaining) from lock.rate_limit_status")
	answers(s, true, "select full_at - taken_at between '59:59.9' and '01:00:00' from lock.rate_limit_status")
	answers(s, "rate_limit a permit 10 per 01:00:00, burst 10", "select concat_ws(' ', kind, name, mode, details) from lock.activity")
	answers(s, true, "select granted from lock.take('a', 20, '1 hour', 30)")
	answers(s, 0, "select count(*)::integer from lock.activity")
	answers(s, "20 01:00:00 30 9", "select concat_ws(' ', rate, per, burst, remaining) from lock.rate_limit_status")
}

// In Go: an answer, a wait as long as it says, and a context that ends it.
func TestRateLimitGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	pool, err := pgxpool.New(ctx, e.url)
	must(t, err)
	defer pool.Close()
	limit := locks.NewRateLimit(pool, 5, time.Second, &locks.RateLimitOptions{Burst: 2})
	taken, err := limit.Take(ctx, "a", 2)
	must(t, err)
	if !taken.Granted || taken.Remaining != 0 || taken.RetryAfter != 0 {
		t.Fatalf("%+v", taken)
	}
	taken, err = limit.Take(ctx, "a", 2)
	must(t, err)
	if taken.Granted || taken.RetryAfter <= 0 || taken.RetryAfter > 400*time.Millisecond {
		t.Fatalf("%+v", taken)
	}
	began := time.Now()
	for range 3 {
		must(t, limit.Wait(ctx, "a", 2))
	}
	if lasted := time.Since(began); lasted < 1100*time.Millisecond-taken.RetryAfter {
		t.Fatalf("6 tokens at 5 a second were there after %s", lasted)
	}
	if _, err := limit.Take(ctx, "a", 3); code(err) != "22023" {
		t.Fatalf("a cost above the burst: %v", err)
	}
	if _, err := locks.NewRateLimit(pool, 0, time.Second, nil).Take(ctx, "a", 1); code(err) != "22023" {
		t.Fatalf("a rate of 0: %v", err)
	}
	slow := locks.NewRateLimit(pool, 1, time.Hour, nil)
	must(t, slow.Wait(ctx, "slow", 1))
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began = time.Now()
	if err := slow.Wait(short, "slow", 1); err == nil || short.Err() != nil || time.Since(began) > 30*time.Second {
		t.Fatalf("a wait that cannot end in time: %v after %s", err, time.Since(began))
	}
	stopped, stop := context.WithCancel(ctx)
	time.AfterFunc(50*time.Millisecond, stop)
	if err := slow.Wait(stopped, "slow", 1); err == nil || stopped.Err() == nil {
		t.Fatalf("a wait whose context was cancelled: %v", err)
	}
	// On a transaction the grant is the transaction's.
	tx, err := pool.Begin(ctx)
	must(t, err)
	taken, err = locks.NewRateLimit(tx, 1, time.Hour, nil).Take(ctx, "tx", 1)
	must(t, err)
	must(t, tx.Rollback(ctx))
	again, err := slow.Take(ctx, "tx", 1)
	must(t, err)
	if !taken.Granted || !again.Granted {
		t.Fatal(taken, again)
	}
}

// The middleware of the page: 429, and a Retry-After that is right.
func TestRateLimitMiddleware(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	pool, err := pgxpool.New(ctx, e.url)
	must(t, err)
	defer pool.Close()
	limited := rateLimited(locks.NewRateLimit(pool, 1, 2*time.Second, nil), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "welcome") }))
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w
	}
	if w := ask(); w.Code != 200 || w.Body.String() != "welcome" {
		t.Fatal(w.Code, w.Body)
	}
	w := ask()
	seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
	if w.Code != 429 || err != nil || seconds < 1 || seconds > 2 {
		t.Fatal(w.Code, w.Header(), err)
	}
	time.Sleep(time.Duration(seconds) * time.Second)
	if w := ask(); w.Code != 200 {
		t.Fatal(w.Code, "after Retry-After")
	}
}

// rateLimited is the middleware of docs/rate_limit.md.
func rateLimited(limit locks.RateLimit, next http.Handler) http.Handler {
	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _, _ := net.SplitHostPort(r.RemoteAddr)
		taken, err := limit.Take(r.Context(), address, 1)
		if err != nil {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		} else if !taken.Granted {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(taken.RetryAfter.Seconds()))))
			http.Error(w, "too many calls", http.StatusTooManyRequests)
		} else {
			next.ServeHTTP(w, r)
		}
	})
	return limited
}

// workLimited is the worker of docs/rate_limit.md.
func workLimited(ctx context.Context, pool *pgxpool.Pool, limit locks.RateLimit, handle func(context.Context, db.Task) error) error {
	err := locks.WorkTasks(ctx, pool, "prompts", func(ctx context.Context, task db.Task) error {
		if taken, err := limit.Take(ctx, "model", 1000); err != nil || !taken.Granted {
			return cmp.Or(err, locks.Snooze(taken.RetryAfter))
		}
		return handle(ctx, task)
	}, nil)
	return err
}

// What runs here is what the page shows.
func TestRateLimitPage(t *testing.T) {
	t.Parallel()
	trimmed := func(text string) string {
		lines := strings.Split(text, "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return strings.Join(lines, "\n")
	}
	page, here := projectFile(t, "docs/rate_limit.md"), trimmed(projectFile(t, "tests/rate_limit_test.go"))
	blocks := strings.Split(page, "```go\n")
	if len(blocks) != 4 {
		t.Fatalf("%d blocks of Go", len(blocks)-1)
	}
	for _, block := range blocks[2:] {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(here, trimmed(code)) {
			t.Errorf("not tested:\n%s", code)
		}
	}
}

// The worker of the page: each task is done once the tokens are there, and none is charged a try for waiting.
func TestRateLimitWorker(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	pool, err := pgxpool.New(ctx, e.url)
	must(t, err)
	defer pool.Close()
	const tasks = 4
	s := e.session(t)
	s.exec("select lock.create_task('prompt ' || n, 'prompts', retries_left => 1) from generate_series(1, $1) n", tasks)
	working, stop := context.WithCancel(ctx)
	defer stop()
	began, mu, done := time.Now(), sync.Mutex{}, 0
	err = workLimited(working, pool, locks.NewRateLimit(pool, 1000, 300*time.Millisecond, nil), func(context.Context, db.Task) error {
		mu.Lock()
		defer mu.Unlock()
		if done++; done == tasks {
			stop()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if lasted := time.Since(began); lasted < (tasks-1)*300*time.Millisecond {
		t.Errorf("%d tasks in %s", tasks, lasted)
	}
	answers(s, tasks, "select count(*)::integer from lock.list_tasks('prompts', 'done')")
}
