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

func usersFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// shown is what a request gets, and who the operator is then.
func shown(t *testing.T, c *consoleServer, change func(*http.Request)) (int, string) {
	t.Helper()
	guard, operator, err := c.authentication()
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
	c := &consoleServer{}
	for host, want := range map[string]int{"127.0.0.1:8437": 200, "localhost": 200, "[::1]:8437": 200, "evil.example": 421, "127.0.0.1.evil.example:8437": 421, "": 421} {
		if got, _ := shown(t, c, func(r *http.Request) { r.Host = host }); got != want {
			t.Errorf("%q: %d, wanted %d", host, got, want)
		}
	}
}

func TestUsers(t *testing.T) {
	c := &consoleServer{users: usersFile(t, "alice:se:cret\nbob:x\n", 0o600)}
	for _, u := range []struct {
		name, password string
		want           int
	}{{"alice", "se:cret", 200}, {"bob", "x", 200}, {"alice", "x", 401}, {"alice", "", 401}, {"eve", "", 401}, {"eve", "x", 401}, {"", "", 401}} {
		got, who := shown(t, c, func(r *http.Request) { r.SetBasicAuth(u.name, u.password) })
		if got != u.want || got == 200 && who != u.name {
			t.Errorf("%s:%s: %d %q, wanted %d", u.name, u.password, got, who, u.want)
		}
	}
	if got, _ := shown(t, c, func(r *http.Request) {}); got != 401 {
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
	c := &consoleServer{}
	asked := func(what string, wanted map[string]int) {
		t.Helper()
		for host, want := range wanted {
			got, _ := shown(t, c, func(r *http.Request) {
				r.Host = host
				r.Header.Set("X-Forwarded-User", "alice")
				r.SetBasicAuth("alice", "secret")
			})
			if got != want {
				t.Errorf("%s, %q: %d, wanted %d", what, host, got, want)
			}
		}
	}
	c.hosts = "locks.example, Ops.example"
	known := map[string]int{"locks.example": 200, "LOCKS.example:443": 200, "ops.example": 200, "localhost:8437": 200, "[::1]": 200,
		"evil.example": 421, "locks.example.evil.example": 421, "": 421, "x.locks.example": 421}
	asked("nobody known", known)
	c.userHeader = "X-Forwarded-User"
	asked("--user-header", known)
	c.userHeader = ""
	c.users = usersFile(t, "alice:secret\n", 0o600)
	asked("--users", known)
	c.hosts = ""
	asked("--users without --hosts", map[string]int{"evil.example": 200, "localhost": 200})
	c.users = ""
	c.userHeader = "X-Forwarded-User"
	if _, _, err := c.authentication(); err == nil || !strings.Contains(err.Error(), "--hosts") {
		t.Errorf("--user-header without --hosts: %v", err)
	}
}

func TestUserHeader(t *testing.T) {
	c := &consoleServer{userHeader: "X-Forwarded-User", hosts: "locks.example"}
	for _, u := range []struct {
		names []string
		want  int
	}{{[]string{"alice"}, 200}, {nil, 401}, {[]string{" "}, 401}, {[]string{"alice", "bob"}, 401}} {
		if got, _ := shown(t, c, func(r *http.Request) { r.Header["X-Forwarded-User"] = u.names }); got != u.want {
			t.Errorf("%q: %d, wanted %d", u.names, got, u.want)
		}
	}
	c.users = "both"
	if _, _, err := c.authentication(); err == nil {
		t.Error("two ways at once")
	}
}

// It does not start where it would show or do things for nobody knows whom.
func TestRefusals(t *testing.T) {
	c := &consoleServer{listen: "127.0.0.1:0"}
	refused := func(what, why string) {
		t.Helper()
		if err := c.serve(context.Background()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, wanted %q", what, err, why)
		}
	}
	t.Setenv("LOCKS_CONSOLE_URL", "")
	t.Setenv("LOCKS_CONSOLE_ACTIONS_URL", "")
	refused("no database", "LOCKS_CONSOLE_URL is not set")
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		c.listen = address
		refused(address, "need to know who asks")
	}
	c.listen = "127.0.0.1:0"
	c.allowActions = true
	refused("actions by nobody", "need to know who asks")
	c.userHeader = "X-Forwarded-User"
	refused("any host", "set --hosts")
	c.hosts = "locks.example"
	t.Setenv("LOCKS_CONSOLE_URL", "postgres://127.0.0.1/")
	refused("no second address", "LOCKS_CONSOLE_ACTIONS_URL is not set")
}
