package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ContainerReady says why no PostgreSQL container can be started, or nil.
func ContainerReady(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").CombinedOutput()
	if err != nil {
		return fmt.Errorf("no Docker engine answers (%s)", firstLine(out, err))
	}
	return nil
}

// YugabyteReady says why no YugabyteDB can be had, or nil.
func YugabyteReady(ctx context.Context) error {
	if os.Getenv("LOCKS_TEST_YUGABYTE_URL") != "" {
		return nil
	}
	return errors.New("LOCKS_TEST_YUGABYTE_URL is not set")
}

func firstLine(out []byte, err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if line == "" {
		return err.Error()
	}
	return line
}
