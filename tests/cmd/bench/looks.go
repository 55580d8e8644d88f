package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks/lockstest/server"
)

// A mixture is how many outstanding requests are what. The first two are of entities of their own.
type mixture struct {
	putBack  int // until later
	newer    int // of these entities, enqueued after that
	one      int // of one entity that is put back
	captured int // of entities that others have
	entities int // that others have
}

// mixtures are one of each kind alone, and some of everything.
func mixtures(random *rand.Rand, outstanding, mixed int) (all []mixture) {
	all = []mixture{
		{putBack: outstanding},
		{putBack: outstanding / 2, newer: outstanding / 2},
		{one: outstanding},
		{captured: outstanding, entities: 1},
		{captured: outstanding, entities: 16},
		{captured: outstanding, entities: 1000},
	}
	for range mixed {
		cuts := []int{0, random.IntN(outstanding), random.IntN(outstanding), random.IntN(outstanding), outstanding}
		slices.Sort(cuts)
		m := mixture{cuts[1], cuts[2] - cuts[1], cuts[3] - cuts[2], cuts[4] - cuts[3], 1 + random.IntN(1000)}
		m.putBack = max(m.putBack, 1)
		all = append(all, m)
	}
	return all
}

// make enqueues, captures and puts back as programs do. The transaction of others stays open.
func (m mixture) make(ctx context.Context, conn, others *pgx.Conn) error {
	type step struct {
		conn *pgx.Conn
		sql  string
	}
	enqueue := func(count int, entity string) step {
		return step{conn, fmt.Sprintf("select count(lock.enqueue('update', %s)) from generate_series(0, %d) n", entity, count-1)}
	}
	const putBack = `do $$
		declare
		    id uuid := gen_random_uuid();
		    line bigint := 0;
		begin
		    loop
		        line := (select min(request_id) from lock.capture_request(id, line));
		        exit when line is null;
		        perform lock.settle_request(id, 'retry', null, '1 hour');
		        commit;
		    end loop;
		end $$`
	return each([]step{
		{conn, "truncate lock.request"},
		enqueue(min(m.one, 1), "'one'"), enqueue(m.putBack, "'p' || n"),
		{conn, putBack},
		enqueue(m.newer, fmt.Sprintf("'p' || n %% %d", max(m.putBack, 1))), enqueue(m.one-1, "'one'"),
		enqueue(min(m.captured, m.entities), "'c' || n"),
		{others, "begin"},
		{others, fmt.Sprintf("select count((select min(request_id) from lock.capture_request(gen_random_uuid(), n * 0))) from generate_series(1, %d) n", min(m.captured, m.entities))},
		enqueue(m.captured-m.entities, fmt.Sprintf("'c' || n %% %d", max(m.entities, 1))),
	}, func(s step) error {
		_, err := s.conn.Exec(ctx, s.sql)
		return err
	})
}

func each[T any](all []T, do func(T) error) error {
	for _, one := range all {
		if err := do(one); err != nil {
			return fmt.Errorf("%v: %w", one, err)
		}
	}
	return nil
}

// looks measures what a look of a worker costs that finds nothing, by what is outstanding: the table of docs/internals/request.md.
func looks(ctx context.Context, s *server.Server) error {
	const database = "looks"
	if err := prepare(ctx, s, comparison{}, database); err != nil {
		return err
	}
	var conns [3]*pgx.Conn
	for i := range conns {
		var err error
		if conns[i], err = pgx.Connect(ctx, s.URL("postgres", database)); err != nil {
			return err
		}
		defer conns[i].Close(ctx)
		if _, err := conns[i].Exec(ctx, "set synchronous_commit = off"); err != nil {
			return err
		}
	}
	fmt.Printf("%10s %10s %10s %10s %10s %10s %10s\n", "put back", "newer", "of one", "captured", "entities", "ms", "ms of CPU")
	return each(mixtures(rand.New(rand.NewPCG(*seed, 0)), *outstanding, *mixed), func(m mixture) error {
		if err := m.make(ctx, conns[0], conns[1]); err != nil {
			return err
		}
		var wall, cpu []float64
		for range 9 {
			began, used := time.Now(), processor(conns[2].PgConn().PID())
			var found int
			err := conns[2].QueryRow(ctx, "select count(*) from lock.capture_request(gen_random_uuid())").Scan(&found)
			if err != nil || found > 0 {
				return fmt.Errorf("%d requests found: %w", found, err)
			}
			wall = append(wall, time.Since(began).Seconds()*1000)
			cpu = append(cpu, float64(processor(conns[2].PgConn().PID())-used)/1e6)
		}
		slices.Sort(wall)
		slices.Sort(cpu)
		fmt.Printf("%10d %10d %10d %10d %10d %10.1f %10.1f\n", m.putBack, m.newer, m.one, m.captured, m.entities, wall[4], cpu[4])
		_, err := conns[1].Exec(ctx, "rollback")
		return err
	})
}

// processor is how many nanoseconds of a processor a process has used.
func processor(pid uint32) (used int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	fmt.Sscan(string(text), &used)
	return used
}
