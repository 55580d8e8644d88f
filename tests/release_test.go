package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRelease: a stranger gets each module alone, and installs the program, from a proxy that has nothing but what a release has.
func TestRelease(t *testing.T) {
	t.Parallel()
	if name := os.Getenv("LOCKS_TEST_TARGET"); name != "" && name != "local" {
		t.Skip("no server is asked: the local target has done it")
	}
	dir := t.TempDir()
	proxy := filepath.Join(dir, "release", "proxy")
	upstream, err := exec.Command("go", "env", "GOPROXY").Output()
	must(t, err)
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	must(t, err)
	run := func(at string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = at
		cmd.Env = append(os.Environ(), "GOPROXY=file://"+proxy+","+strings.TrimSpace(string(upstream)), "GONOSUMDB=github.com/seed4787c507/*,github.com/seed4787c507/locks",
			"GOFLAGS=-mod=mod -modcacherw", "GOWORK=off", "GOBIN="+filepath.Join(dir, "bin"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	version := fmt.Sprint("v0.0.1-test", time.Now().UnixNano()) // The module cache is shared with other runs.
	run(".", "go", "run", "./cmd/release", "-version", version, "-out", filepath.Join(dir, "release"), "-proxy-only")
	t.Cleanup(func() {
		ours := filepath.Join(strings.TrimSpace(string(cache)), "github.com", "seed4787c507")
		for _, kept := range []string{"locks@" + version, "locks/lockstest@" + version, "locks/console@" + version, "locks/cli@" + version} {
			must(t, os.RemoveAll(filepath.Join(ours, filepath.FromSlash(kept))))
		}
	})
	for name, program := range map[string]string{
		"locks":           "package main\n\nimport \"github.com/seed4787c507/locks\"\n\nfunc main() { println(locks.Migrations() != nil) }\n",
		"locks/console":   "package main\n\nimport \"github.com/seed4787c507/locks/console\"\n\nfunc main() { println(console.Handler != nil) }\n",
		"locks/lockstest": "package main\n\nimport \"github.com/seed4787c507/locks/lockstest\"\n\nfunc main() { println(lockstest.Pool != nil) }\n",
	} {
		at := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		must(t, os.Mkdir(at, 0o755))
		must(t, os.WriteFile(filepath.Join(at, "main.go"), []byte(program), 0o644))
		run(at, "go", "mod", "init", "stranger.example/program")
		run(at, "go", "get", "github.com/seed4787c507/"+name+"@"+version)
		run(at, "go", "mod", "tidy")
		run(at, "go", "build", "-o", filepath.Join(at, "program"), ".")
		if name != "locks" {
			continue
		}
		mod, err := os.ReadFile(filepath.Join(at, "go.mod"))
		must(t, err)
		for _, other := range []string{"goose", "cobra", "chromedp"} {
			if strings.Contains(string(mod), other) {
				t.Errorf("who imports the package gets %s, too:\n%s", other, mod)
			}
		}
	}
	run(dir, "go", "install", "github.com/seed4787c507/locks/cli/locks@"+version)
	out, err := exec.Command(filepath.Join(dir, "bin", "locks"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), version) {
		t.Errorf("%v: %s", err, out)
	}
}
