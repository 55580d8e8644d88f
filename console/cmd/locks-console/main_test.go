package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// set gives a flag a value until the test ends.
func set[T any](t *testing.T, flag *T, value T) {
	t.Helper()
	before := *flag
	*flag = value
	t.Cleanup(func() { *flag = before })
}

func usersFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// status is what a request gets, and who the operator is then.
func status(t *testing.T, change func(*http.Request)) (int, string) {
	t.Helper()
	guard, operator, err := authentication()
	if err != nil {
		t.Fatal(err)
	}
	who := ""
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://127.0.0.1:8437/", nil)
	change(r)
	guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if operator != nil {
			who = operator(r)
		}
	})).ServeHTTP(w, r)
	return w.Code, who
}

func TestNobodyKnown(t *testing.T) {
	for host, want := range map[string]int{"127.0.0.1:8437": 200, "localhost": 200, "[::1]:8437": 200, "evil.example": 421, "127.0.0.1.evil.example:8437": 421, "": 421} {
		if got, _ := status(t, func(r *http.Request) { r.Host = host }); got != want {
			t.Errorf("%q: %d, wanted %d", host, got, want)
		}
	}
}

func TestUsers(t *testing.T) {
	set(t, users, usersFile(t, "alice:se:cret\nbob:x\n", 0o600))
	for _, c := range []struct {
		name, password string
		want           int
	}{{"alice", "se:cret", 200}, {"bob", "x", 200}, {"alice", "x", 401}, {"alice", "", 401}, {"eve", "", 401}, {"eve", "x", 401}, {"", "", 401}} {
		got, who := status(t, func(r *http.Request) { r.SetBasicAuth(c.name, c.password) })
		if got != c.want || got == 200 && who != c.name {
			t.Errorf("%s:%s: %d %q, wanted %d", c.name, c.password, got, who, c.want)
		}
	}
	if got, _ := status(t, func(r *http.Request) {}); got != 401 {
		t.Error(got)
	}
	for text, mode := range map[string]os.FileMode{"alice:secret": 0o644, "alice": 0o600, "": 0o600, "alice:\n": 0o600, ":x": 0o600} {
		if _, err := readUsers(usersFile(t, text, mode)); err == nil {
			t.Errorf("%q %o was read", text, mode)
		}
	}
}

// A name that somebody else has pointed here leads nowhere.
func TestHosts(t *testing.T) {
	asked := func(what string, wanted map[string]int) {
		t.Helper()
		for host, want := range wanted {
			got, _ := status(t, func(r *http.Request) {
				r.Host = host
				r.Header.Set("X-Forwarded-User", "alice")
				r.SetBasicAuth("alice", "secret")
			})
			if got != want {
				t.Errorf("%s, %q: %d, wanted %d", what, host, got, want)
			}
		}
	}
	set(t, hosts, "locks.example, Ops.example")
	known := map[string]int{"locks.example": 200, "LOCKS.example:443": 200, "ops.example": 200, "localhost:8437": 200, "[::1]": 200,
		"evil.example": 421, "locks.example.evil.example": 421, "": 421, "x.locks.example": 421}
	asked("nobody known", known)
	set(t, userHeader, "X-Forwarded-User")
	asked("-user-header", known)
	set(t, userHeader, "")
	set(t, users, usersFile(t, "alice:secret\n", 0o600))
	asked("-users", known)
	set(t, hosts, "")
	asked("-users without -hosts", map[string]int{"evil.example": 200, "localhost": 200})
	set(t, users, "")
	set(t, userHeader, "X-Forwarded-User")
	if _, _, err := authentication(); err == nil || !strings.Contains(err.Error(), "-hosts") {
		t.Errorf("-user-header without -hosts: %v", err)
	}
}

func TestUserHeader(t *testing.T) {
	set(t, userHeader, "X-Forwarded-User")
	set(t, hosts, "locks.example")
	for _, c := range []struct {
		names []string
		want  int
	}{{[]string{"alice"}, 200}, {nil, 401}, {[]string{" "}, 401}, {[]string{"alice", "bob"}, 401}} {
		if got, _ := status(t, func(r *http.Request) { r.Header["X-Forwarded-User"] = c.names }); got != c.want {
			t.Errorf("%q: %d, wanted %d", c.names, got, c.want)
		}
	}
	set(t, users, "both")
	if _, _, err := authentication(); err == nil {
		t.Error("two ways at once")
	}
}

// It does not start where it would show or do things for nobody knows whom.
func TestRefusals(t *testing.T) {
	refused := func(what, why string) {
		t.Helper()
		if err := run(context.Background()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, wanted %q", what, err, why)
		}
	}
	t.Setenv("LOCKS_CONSOLE_URL", "")
	t.Setenv("LOCKS_CONSOLE_ACTIONS_URL", "")
	refused("no database", "LOCKS_CONSOLE_URL is not set")
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		set(t, listen, address)
		refused(address, "need to know who asks")
	}
	set(t, listen, "127.0.0.1:0")
	set(t, allowActions, true)
	refused("actions by nobody", "need to know who asks")
	set(t, userHeader, "X-Forwarded-User")
	refused("any host", "set -hosts")
	set(t, hosts, "locks.example")
	t.Setenv("LOCKS_CONSOLE_URL", "postgres://127.0.0.1/")
	refused("no second address", "LOCKS_CONSOLE_ACTIONS_URL is not set")
}
