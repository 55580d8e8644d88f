//go:build unix

package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"os/exec"
	"strings"
)

// Docker starts a PostgreSQL image in a container of the Docker engine on this machine, and returns the address of the superuser
// postgres. The container is removed when this process ends, however it does.
func Docker(ctx context.Context, image string) (url string, err error) {
	name := "locks-pg-" + strings.ToLower(rand.Text()[:12])
	if _, err := guard(`docker rm --force --volumes "$1"`, name); err != nil {
		return "", err
	}
	args := []string{"run", "--rm", "--detach", "--name", name, "--publish", "127.0.0.1::5432",
		"--env", "POSTGRES_HOST_AUTH_METHOD=trust", image, "postgres"}
	for _, setting := range Settings(false) {
		args = append(args, "-c", setting)
	}
	if _, err := docker(ctx, args...); err != nil {
		return "", err
	}
	address, err := docker(ctx, "port", name, "5432/tcp")
	if err != nil {
		return "", err
	}
	address, _, _ = strings.Cut(address, "\n")
	url = "postgres://postgres@" + address + "/postgres?sslmode=disable"
	if err := ready(ctx, url, nil); err != nil {
		log, _ := docker(ctx, "logs", name)
		return "", fmt.Errorf("a container of %s did not answer: %w\n%s", image, err, log)
	}
	return url, nil
}

func docker(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if exit, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
