//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var requestKind = &kind{name: "request", weight: 10, round: requestRound, check: checkRequests, final: finalRequests}

// requestRound enqueues a request for an entity, or works on one entity's requests.
func requestRound(s *session) error {
	if s.dice.IntN(5) < 3 {
		return s.enqueue()
	}
	window := windowOf(s.start, now())
	if s.dice.IntN(8) == 0 && window > 0 {
		window--
	}
	_, err := s.work(window, queueOf(window))
	return err
}

func (s *session) enqueue() error {
	id, window := s.slot("q", 5)
	if !s.once("entity "+id, "insert into torture.entity (id) values ($1) on conflict do nothing", id) {
		return nil
	}
	var request int64
	p := s.call(window, "request", "enqueue", id)
	result, _ := s.ask([]any{&request}, "select lock.enqueue('update', $1, jsonb_build_object('call', $2::bigint), $3)", id, p.number, queueOf(window))
	if result == unknown {
		// Is it in the entity's history? If not, it may still come: the server may be at it.
		found, err := s.until(func() outcome {
			found, _ := s.ask([]any{&request}, "select request_id from lock.request_history($1, $2, 100000) where (payload ->> 'call')::bigint = $3", id, queueOf(window), p.number)
			return found
		})
		if err != nil {
			return err
		}
		if found == yes {
			result = yes
		}
	}
	s.answer(p, result, request)
	return nil
}

// work captures one entity's requests, writes what is done about them in the same transaction, and settles them. It counts the entity
// up by reading and writing a row, which goes wrong when two are at it.
func (s *session) work(window int, queue string) (bool, error) {
	p := s.call(window, "request", "capture", "-")
	called := now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue("select entity_id, request_id from lock.capture_request(lpad($1, 32, '0')::uuid, queue_id => $2)", fmt.Sprint(p.number), queue)
	results := s.conn.SendBatch(ctx, batch)
	var entity string
	var ids []int64
	_, err := results.Exec()
	if err == nil {
		var rows pgx.Rows
		if rows, err = results.Query(); err == nil {
			var id int64
			_, err = pgx.ForEachRow(rows, []any{&entity, &id}, func() error { ids = append(ids, id); return nil })
		}
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	result := s.tell(err)
	if result == yes && len(ids) == 0 {
		result = no
	}
	s.answer(p, result, ids...)
	if result != yes {
		s.exec("rollback")
		return false, nil
	}
	s.die("requests captured")
	way := s.dice.IntN(15)
	process := fmt.Sprint(p.number)
	if way == 0 {
		s.exec("rollback")
		return true, nil
	} else if way == 1 {
		p := s.call(window, "request", "settle", "-")
		put, _ := s.pipeline(statement{sql: "select lock.settle_request(lpad($1, 32, '0')::uuid, 'retry')", args: []any{process}}, statement{sql: "commit"})
		s.answer(p, put)
		if put != yes {
			s.exec("rollback")
		}
		return true, nil
	}
	var place int64
	if result, _ = s.ask([]any{&place}, "select n from torture.entity where id = $1", entity); result != yes {
		s.exec("rollback")
		return true, nil
	}
	time.Sleep(s.linger)
	noted := s.callAt(called, window, "request", "+batch", entity, append([]int64{place}, ids...)...)
	settle := s.call(window, "request", "settle", "-")
	var settled int64
	result, _ = s.pipeline(
		statement{sql: "update torture.entity set n = $2 where id = $1", args: []any{entity, place + 1}},
		statement{
			sql:  "insert into torture.work (window_number, entity, request, place, process) select $1, $2, request, $4, $5 from unnest($3::bigint[]) as request",
			args: []any{window, entity, ids, place, p.number},
		},
		statement{sql: "select lock.settle_request(lpad($1, 32, '0')::uuid)", args: []any{process}, dest: []any{&settled}},
		statement{sql: "commit"},
	)
	s.die("requests settled")
	if result == unknown {
		// The rows of its own transaction tell.
		found, err := s.until(func() outcome {
			return s.truth("select exists (select from torture.work where window_number = $1 and process = $2)", window, p.number)
		})
		if err != nil {
			return true, err
		}
		if found == yes {
			result = yes
		}
	}
	s.answer(settle, result)
	s.answer(noted, result)
	if result != yes {
		s.exec("rollback")
	}
	return true, nil
}

// checkRequests compares the batches of an entity with what was enqueued before: a batch has all that was there when it was captured.
func checkRequests(c *checker, id string, ops []*op) {
	enqueued := map[int64]*op{}
	worked := map[int64]*op{}
	places := map[int64]*op{}
	for _, o := range ops {
		switch {
		case o.name == "enqueue" && o.outcome == yes:
			if other := enqueued[o.out[0]]; other != nil {
				c.violate(o.kind, id, "one id was given to two requests", other, o)
			}
			enqueued[o.out[0]] = o
		case o.name == "+batch" && o.outcome == yes:
			if other := places[o.in[0]]; other != nil {
				c.violate(o.kind, id, "two workers had the entity at the same time", other, o)
			}
			places[o.in[0]] = o
			for _, request := range o.in[1:] {
				if other := worked[request]; other != nil {
					c.violate(o.kind, id, "a request was done twice", other, o)
				}
				worked[request] = o
			}
		}
	}
	for _, o := range ops {
		if o.name != "+batch" || o.outcome != yes {
			continue
		}
		for request, asked := range enqueued {
			if by := worked[request]; by != nil && asked.ret < o.call && by.in[0] > o.in[0] {
				c.violate(o.kind, id, "a request was passed over", asked, o, by)
			}
		}
	}
}

// finalRequests compares what was acknowledged with what is there: each request is complete, and was worked on once.
func finalRequests(ctx context.Context, conn *pgx.Conn, c *checker, window int, ops []*op) error {
	times := map[int64]int{}
	rows, err := conn.Query(ctx, "select request, count(*) from torture.work where window_number = $1 group by request", window)
	if err != nil {
		return err
	}
	var request int64
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&request, &count}, func() error { times[request] = count; return nil }); err != nil {
		return err
	}
	statuses := map[int64]string{}
	if rows, err = conn.Query(ctx, "select request_id, request_status::text from lock.request where queue_id = $1", queueOf(window)); err != nil {
		return err
	}
	var status string
	if _, err := pgx.ForEachRow(rows, []any{&request, &status}, func() error { statuses[request] = status; return nil }); err != nil {
		return err
	}
	for _, o := range ops {
		if o.name != "enqueue" || o.outcome != yes {
			continue
		}
		switch status := statuses[o.out[0]]; {
		case status == "":
			c.lose("request", o.id, "it was enqueued and is gone", o)
		case status != "complete":
			c.lose("request", o.id, "it ended as "+status, o)
		case times[o.out[0]] == 0:
			c.lose("request", o.id, "it is complete, and nobody did it", o)
		case times[o.out[0]] > 1:
			c.violate("request", o.id, "it was done more than once", o)
		}
	}
	return nil
}

// drainRequests lets a worker work on what is left in the queues.
func drainRequests(s *session, count func() (int, error)) error {
	for {
		left, err := count()
		if err != nil || left == 0 {
			return err
		}
		for window := range windowOf(s.start, now()) + 1 {
			for _, queue := range []string{queueOf(window), oddQueueOf(window)} {
				for worked := true; worked; {
					err := s.connected()
					if err == nil {
						worked, err = s.work(window, queue)
					}
					if err != nil {
						return err
					}
				}
			}
		}
	}
}
