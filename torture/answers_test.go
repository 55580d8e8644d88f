//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"testing"
	"time"
)

// Whose answer is cut off before the server has said that it is ready may not take it for one: of a transaction that has not ended yet
// the rows are known already. Here some transactions fail at their very end, some connections end there, and some end after the commit.
func TestAnswersWithoutAnEnd(t *testing.T) {
	t.Parallel()
	before := []string{`create function torture.fails() returns trigger language plpgsql security definer set search_path = pg_catalog as $$
		begin
			if random() < 0.5 then
				raise exception 'this transaction failed at its end' using errcode = 'serialization_failure';
			end if;
			perform pg_terminate_backend(pg_backend_pid());
			perform pg_sleep(1);
			return null;
		end $$`}
	for table, chance := range map[string]float64{"task": 0.02, "mutex": 0.15, "lease": 0.1, "throttled_resource": 0.1, "request": 0.02} {
		before = append(before, fmt.Sprintf(`create constraint trigger fails after update or delete on lock.%s deferrable initially deferred
			for each row when (pg_catalog.current_setting('application_name') = 'cut' and pg_catalog.random() < %v) execute function torture.fails()`, table, chance))
	}
	kinds := []string{"task", "mutex", "lease", "throttle", "request"}
	c := torturedAt(t, cutting(t, 0.1)+"&application_name=cut", before, kinds, 3*time.Second, 3000, nil)
	for _, example := range c.Examples {
		t.Error(example)
	}
	for _, kind := range kinds {
		if n := c.Outcomes[kind]; n.Yes == 0 || n.Failed+n.Unknown == 0 && kind != "mutex" {
			t.Errorf("%s: %+v", kind, n)
		}
	}
}

// cutting is the address of a proxy to the server. It ends a connection, by chance, when the server is ready for the next question.
func cutting(t *testing.T, chance float64) string {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go cut(client, server, chance)
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

func cut(client net.Conn, address string, chance float64) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		io.Copy(server, client)
		server.Close()
	}()
	head := make([]byte, 5)
	for first := true; ; {
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		if head[0] == 'Z' {
			if !first && rand.Float64() < chance {
				return
			}
			first = false // A connection is made in any case.
		}
		if _, err := client.Write(head); err != nil {
			return
		}
		if _, err := io.CopyN(client, server, int64(binary.BigEndian.Uint32(head[1:]))-4); err != nil {
			return
		}
	}
}
