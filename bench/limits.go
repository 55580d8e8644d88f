//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// bucketScript is the generic cell rate algorithm for Redis: a key's value is when its bucket is full again, in microseconds.
var bucketScript = redis.NewScript(`
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local rate, per, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local early = full - math.floor((burst - cost) * per / rate) - now
if early > 0 then
	return {0, early}
end
full = full + math.ceil(cost * per / rate)
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {1, 0}`)

// limits compares grants of a rate limit that nobody exhausts: what is measured is the bucket.
func (l *lab) limits(ids string) row {
	r := row{ID: "rate_limit", Title: "Rate limits", About: fmt.Sprintf("A token of one of %s buckets, and of one bucket.", grouped(float64(idCount()))),
		Columns: columns("/s", "1 client", "8 clients", "32 clients", "one bucket, 1", "one bucket, 8", "one bucket, 32")}
	clients := func(column int) int { return []int{1, 8, 32}[column%3] }
	name := func(column int) string {
		if column >= 3 {
			return "id7"
		}
		return fmt.Sprint("id", rand.IntN(idCount()))
	}
	const (
		take  = "select granted from lock.take($1, 1000000000, '1 second')"
		plain = "insert into bucket values ($1, clock_timestamp()) on conflict (id) do update set full_at = excluded.full_at"
	)
	once := func(ctx context.Context, conn *pgx.Conn, sql, id string) error {
		_, err := conn.Exec(ctx, sql, id)
		return err
	}
	for _, side := range []struct {
		name, database, sql, lacks, setup string
		lax                               bool
	}{
		{"locks", "locks", take, "-", "insert into lock.rate_limit (limit_id, rate, per, burst) select 'id' || n, 1, '1 second', 1 " + ids, false},
		{"locks, synchronous_commit off", "locks", take, "a crash forgets the grants of the last moments", "", true},
		{"the bare upsert", "plain", plain, "no limit: it stores a time", "create table if not exists bucket (id text primary key, full_at timestamptz not null) with (fillfactor = 80); " +
			"insert into bucket select 'id' || n, now() " + ids + " on conflict do nothing", false},
	} {
		r.entries = append(r.entries, entry{
			name: side.name, lacks: side.lacks,
			prepare: func(ctx context.Context) error {
				var statements []string
				if side.setup != "" {
					statements = strings.Split(side.setup, "; ")
				}
				return l.exec(ctx, side.database, append(statements, "vacuum analyze", "checkpoint")...)
			},
			run: func(ctx context.Context, column int) ([]float64, error) {
				url := l.url(side.database)
				if side.lax {
					url += "&options=-c%20synchronous_commit%3Doff"
				}
				return l.each(ctx, url, clients(column), func(ctx context.Context, conn *pgx.Conn, _ int) error { return once(ctx, conn, side.sql, name(column)) })
			},
		})
	}
	if l.redis == "" {
		return r
	}
	for _, aof := range []bool{false, true} {
		title, lacks := "GCRA script, Redis without AOF", "a restart of Redis forgets what was taken; no transaction"
		if aof {
			title, lacks = "GCRA script, Redis with AOF every second", "a crash of Redis forgets a second; no transaction"
		}
		r.entries = append(r.entries, entry{name: title, lacks: lacks, run: func(ctx context.Context, column int) ([]float64, error) {
			address := l.redis
			if aof {
				address = l.redisAOF
			}
			client := redis.NewClient(&redis.Options{Addr: address, PoolSize: clients(column), MinIdleConns: clients(column)})
			defer client.Close()
			return perSecond(drive(ctx, clients(column), func(ctx context.Context, _ int) error {
				return bucketScript.Run(ctx, client, []string{"bucket:" + name(column)}, 1_000_000_000, 1_000_000, 1_000_000_000, 1).Err()
			}))
		}})
	}
	return r
}
