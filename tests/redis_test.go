package tests

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// openRedis is a real server: the one that REDIS_URL names, or one of our own on a free port; without either the test is skipped.
// It returns the server and a key that nobody else uses.
func openRedis(t *testing.T) (*redis.Client, string) {
	t.Helper()
	options := &redis.Options{}
	if url := os.Getenv("REDIS_URL"); url != "" {
		var err error
		options, err = redis.ParseURL(url)
		must(t, err)
	} else {
		path, err := exec.LookPath("redis-server")
		if err != nil {
			t.Skip("no Redis: REDIS_URL is not set, and redis-server is not in PATH")
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		options.Addr = listener.Addr().String()
		listener.Close()
		_, port, err := net.SplitHostPort(options.Addr)
		must(t, err)
		cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
		must(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	eventually(t, "Redis answers", func() bool { return client.Ping(ctx).Err() == nil })
	key := fmt.Sprintf("task:%d:%s", time.Now().UnixNano(), t.Name())
	t.Cleanup(func() { client.Del(ctx, key) })
	return client, key
}

// zadd is the page's command; it says how many elements were created or changed.
func zadd(t *testing.T, client *redis.Client, key string, args ...any) bool {
	t.Helper()
	n, err := client.Do(ctx, append([]any{"zadd", key}, args...)...).Int()
	must(t, err)
	return n == 1
}

// Random sequences of the Redis page's commands get the answers there that ours give. acquire_mutex makes a mutex that is
// new, so its equivalent is nx and then xx ch; all else is one command each.
func TestMutexAgainstRedis(t *testing.T) {
	t.Parallel()
	client, key := openRedis(t)
	e := open(t, advisory)
	s := e.session(t)
	random := rand.New(rand.NewPCG(1, 2))
	answered := map[string]int{}
	for step := range 3000 {
		id := "task_" + strconv.Itoa(random.IntN(8))
		if step%500 == 499 {
			s.exec("begin")
			s.exec("select lock.acquire_mutex($1)", id)
			s.exec("rollback")
		}
		var want, got bool
		var what string
		switch random.IntN(5) {
		case 0:
			what = "create"
			want = zadd(t, client, key, "nx", 0, id)
			got = get[bool](s, "select lock.create_mutex($1)", id)
		case 1, 2:
			what = "acquire"
			zadd(t, client, key, "nx", 0, id)
			want = zadd(t, client, key, "xx", "ch", 1, id)
			got = get[bool](s, "select lock.acquire_mutex($1)", id)
		default:
			what = "release"
			want = zadd(t, client, key, "xx", "ch", 0, id)
			got = get[bool](s, "select lock.release_mutex($1)", id)
		}
		if got != want {
			t.Fatalf("step %d: %s %s: Redis says %v, we say %v", step, what, id, want, got)
		}
		answered[fmt.Sprint(what, " ", got)]++
	}
	if len(answered) != 6 {
		t.Fatalf("not every answer was seen: %v", answered)
	}
	scores, err := client.ZRangeWithScores(ctx, key, 0, -1).Result()
	must(t, err)
	for _, z := range scores {
		answers(s, z.Score == 1, "select acquired from lock.mutex_status where task_id = $1", z.Member)
	}
	answers(s, len(scores), "select count(*)::integer from lock.mutex_status")
}

// A slot is gt ch with the score floor(ts / timeout), before and after 1970.
func TestTimeSlotAgainstRedis(t *testing.T) {
	t.Parallel()
	client, key := openRedis(t)
	e := open(t, advisory)
	s := e.session(t)
	random := rand.New(rand.NewPCG(3, 4))
	lengths := []int64{1, 7, 10, 3600, 86400}
	answered := map[bool]int{}
	clock := map[string]int64{}
	for step := range 3000 {
		n := random.IntN(len(lengths) * 2)
		id, length := "task_"+strconv.Itoa(n), lengths[n%len(lengths)]
		if _, known := clock[id]; !known {
			clock[id] = []int64{-20 * length, 1445412480}[n/len(lengths)]
		}
		clock[id] += random.Int64N(length + 1)
		ts := clock[id] - random.Int64N(2)*random.Int64N(3*length)
		score := ts / length
		if ts%length < 0 {
			score--
		}
		want := zadd(t, client, key, "gt", "ch", score, id)
		got := get[bool](s, "select lock.acquire_time_slot($1, make_interval(secs => $2), to_timestamp($3))", id, length, ts)
		if got != want {
			t.Fatalf("step %d: slot %d of %s at %d: Redis says %v, we say %v", step, score, id, ts, want, got)
		}
		answered[got]++
		stored, err := client.ZScore(ctx, key, id).Result()
		must(t, err)
		answers(s, stored*float64(length), "select extract(epoch from slot_start)::float8 from lock.time_slot_status where task_id = $1", id)
	}
	if answered[true] < 500 || answered[false] < 500 {
		t.Fatalf("hardly all was tried: %v", answered)
	}
}
