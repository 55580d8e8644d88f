//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"github.com/seed4787c507/locks/lockstest/server"
	"github.com/seed4787c507/locks/tests/container"
)

// A target is the PostgreSQL that the demo runs on.
type target struct {
	url      string
	about    string       // what it is
	shell    string       // its address as a word of shell
	stop     func() error // nil: it is not ours
	stopLine string       // a line of shell that does the same
}

var errNoTarget = errors.New("there is no PostgreSQL here: set LOCKS_DEMO_URL to the address of a database for it, or install PostgreSQL's server " +
	"(on Debian: apt-get install postgresql), or start a Docker engine")

// findTarget returns the first that can be had: the database that LOCKS_DEMO_URL names, a throwaway cluster from local binaries,
// a container, a throwaway cluster from Debian's packages, which it installs.
func findTarget(ctx context.Context, keep bool) (*target, error) {
	if address := os.Getenv("LOCKS_DEMO_URL"); address != "" {
		return &target{url: address, about: "the database that LOCKS_DEMO_URL names", shell: `"$LOCKS_DEMO_URL"`}, nil
	}
	t, err := throwaway(ctx, keep)
	if !errors.Is(err, server.ErrNoBinaries) {
		return t, err
	}
	fmt.Println("No PostgreSQL binaries; trying a container.")
	t, err = inContainer(ctx, keep)
	if err == nil || ctx.Err() != nil {
		return t, err
	}
	fmt.Println("No container either:", strings.ReplaceAll(err.Error(), "\n", "; "))
	if err := install(ctx); err != nil {
		return nil, err
	}
	return throwaway(ctx, keep)
}

func throwaway(ctx context.Context, keep bool) (*target, error) {
	s, err := server.Start(ctx, server.Options{Keep: keep})
	if err != nil {
		return nil, err
	}
	address := s.URL("postgres", "postgres")
	return &target{
		url: address, about: "a throwaway cluster from " + s.BinDir, shell: "'" + address + "'",
		stop: s.Stop, stopLine: s.StopCommand(),
	}, nil
}

func inContainer(ctx context.Context, keep bool) (*target, error) {
	if keep {
		// The reaper would remove the container when this process ends.
		os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	}
	address, stop, err := container.Start(ctx)
	if err != nil {
		return nil, err
	}
	port := ""
	if u, err := url.Parse(address); err == nil {
		port = u.Port()
	}
	return &target{
		url: address, about: "a container", shell: "'" + address + "'",
		stop: stop, stopLine: "docker rm --force --volumes $(docker ps --quiet --filter publish=" + port + ")",
	}, nil
}

// noCluster is where Debian's packages look whether to make and start a cluster of their own.
const noCluster = "/etc/postgresql-common/createcluster.conf"

// install installs Debian's PostgreSQL when this is root on Debian, its programs alone: no cluster is made, and nothing is started.
func install(ctx context.Context) error {
	if _, err := os.Stat("/etc/debian_version"); err != nil || os.Getuid() != 0 {
		return errNoTarget
	}
	aptGet, err := exec.LookPath("apt-get")
	if err != nil {
		return errNoTarget
	}
	fmt.Println("No PostgreSQL here: installing Debian's package postgresql, without a cluster of its own. Ctrl-C to leave it.")
	for _, arguments := range [][]string{{"update", "-q"}, {"install", "-q", "-y", "postgresql-common"}, {"install", "-q", "-y", "postgresql"}} {
		if arguments[len(arguments)-1] == "postgresql" {
			before, err := os.ReadFile(noCluster)
			if err != nil {
				return err
			}
			if err := os.WriteFile(noCluster, append(before[:len(before):len(before)], "\ncreate_main_cluster = false\n"...), 0o644); err != nil {
				return err
			}
			defer os.WriteFile(noCluster, before, 0o644)
		}
		fmt.Println("$ apt-get", strings.Join(arguments, " "))
		cmd := exec.CommandContext(ctx, aptGet, arguments...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w (apt-get %s: %w)\n%s", errNoTarget, arguments[0], err, out)
		}
	}
	return nil
}
