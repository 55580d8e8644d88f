package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

// ErrNoDocker says that no Docker engine answers.
var ErrNoDocker = errors.New("no Docker engine answers")

// ContainerReady says why no container can be started, or nil.
func ContainerReady(ctx context.Context) error {
	if err := dockerAnswers(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNoDocker, err)
	}
	return nil
}

// YugabyteReady says why no YugabyteDB can be had, or nil.
func YugabyteReady() error {
	if os.Getenv("LOCKS_TEST_YUGABYTE_URL") == "" {
		return errors.New("LOCKS_TEST_YUGABYTE_URL is not set")
	}
	return nil
}

// Container starts a PostgreSQL in a container and returns the address of its superuser. An empty image means
// LOCKS_TEST_IMAGE, or else postgres:17-alpine; it is pulled when the engine does not have it.
func Container(ctx context.Context, image string) (url string, stop func() error, err error) {
	if err := ContainerReady(ctx); err != nil {
		return "", nil, err
	}
	image = cmp.Or(image, os.Getenv("LOCKS_TEST_IMAGE"), "postgres:17-alpine")
	container, err := postgres.Run(ctx, image, postgres.BasicWaitStrategies(), postgres.WithDatabase("postgres"),
		postgres.WithUsername("postgres"), postgres.WithPassword("postgres"))
	// The container may exist although it did not become ready.
	stop = func() error { return testcontainers.TerminateContainer(container) }
	if err == nil {
		url, err = container.ConnectionString(ctx, "sslmode=disable")
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("container %s: %w", image, err), stop())
	}
	return url, stop, nil
}

func dockerAnswers(ctx context.Context) (err error) {
	// Without any Docker host the library panics.
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("%v", problem)
		}
	}()
	log.SetDefault(log.NewNoopLogger())
	provider, err := testcontainers.ProviderDocker.GetProvider()
	if err != nil {
		return err
	}
	return provider.Health(ctx)
}
