// Package container starts throwaway PostgreSQL and YugabyteDB servers in containers.
package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/seed4787c507/locks/lockstest/server"
)

const (
	postgresImage = "postgres:17-alpine"
	yugabyteImage = "yugabytedb/yugabyte:2025.2.3.0-b136"
)

// ErrNoDocker says that no Docker engine answers.
var ErrNoDocker = errors.New("no Docker engine answers")

// Ready says why Start cannot start anything, or nil. An image that the engine does not have counts as out of reach unless
// it may be pulled, which happens here.
func Ready(ctx context.Context, pull bool) error {
	return imageReady(ctx, cmp.Or(os.Getenv("LOCKS_TEST_IMAGE"), postgresImage), pull)
}

// YugabyteReady says why no YugabyteDB can be had, or nil.
func YugabyteReady(ctx context.Context, pull bool) error {
	if os.Getenv("LOCKS_TEST_YUGABYTE_URL") != "" {
		return nil
	}
	err := imageReady(ctx, cmp.Or(os.Getenv("LOCKS_TEST_YUGABYTE_IMAGE"), yugabyteImage), pull)
	if err != nil {
		return fmt.Errorf("LOCKS_TEST_YUGABYTE_URL is not set, and %w", err)
	}
	return nil
}

// Start starts a PostgreSQL in a container and returns the address of its superuser; everybody else may connect without a
// password. Its image is LOCKS_TEST_IMAGE, or else postgres:17-alpine; it is pulled when the engine does not have it.
func Start(ctx context.Context) (url string, stop func() error, err error) {
	if err := dockerAnswers(ctx); err != nil {
		return "", nil, err
	}
	image := cmp.Or(os.Getenv("LOCKS_TEST_IMAGE"), postgresImage)
	command := []string{"postgres"}
	for _, setting := range server.Settings(false) {
		command = append(command, "-c", setting)
	}
	container, err := postgres.Run(ctx, image, postgres.BasicWaitStrategies(), postgres.WithDatabase("postgres"),
		postgres.WithUsername("postgres"), postgres.WithPassword("postgres"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}), testcontainers.WithCmd(command...))
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

// Yugabyte starts a YugabyteDB of one node in a container and returns the address of its superuser. With flags it has read committed
// isolation, and notifications where the version has them; without, what yugabyted sets. Its image is
// LOCKS_TEST_YUGABYTE_IMAGE, or else a pinned one.
func Yugabyte(ctx context.Context, flags bool) (address string, stop func() error, err error) {
	if err := dockerAnswers(ctx); err != nil {
		return "", nil, err
	}
	image := cmp.Or(os.Getenv("LOCKS_TEST_YUGABYTE_IMAGE"), yugabyteImage)
	command := []string{"bin/yugabyted", "start", "--background=false"}
	if flags {
		command = append(command, yugabyteFlags(image)...)
	}
	const port = "5433/tcp"
	container, err := testcontainers.Run(ctx, image, testcontainers.WithCmd(command...), testcontainers.WithExposedPorts(port),
		testcontainers.WithWaitStrategyAndDeadline(10*time.Minute, wait.ForAll(
			wait.ForLog("YugabyteDB Started"),
			wait.ForLog("Data placement constraint successfully verified"),
			wait.ForListeningPort(port))))
	stop = func() error { return testcontainers.TerminateContainer(container) }
	if err == nil {
		address, err = container.PortEndpoint(ctx, port, "")
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("container %s: %w", image, err), stop())
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword("yugabyte", "yugabyte"), Host: address, Path: "/yugabyte", RawQuery: "sslmode=disable"}
	return u.String(), stop, nil
}

var release = regexp.MustCompile(`:(\d+)\.(\d+)\.(\d+)\.`)

// yugabyteFlags are the flags for an image. A server that does not know a flag does not start: notifications came with 2025.2.3.
func yugabyteFlags(image string) []string {
	flags := []string{"--tserver_flags=yb_enable_read_committed_isolation=true"}
	if m := release.FindStringSubmatch(image); m != nil {
		var number int
		for _, part := range m[1:] {
			n, _ := strconv.Atoi(part)
			number = number*100 + n
		}
		if number >= 20250203 {
			flags[0] += ",ysql_yb_enable_listen_notify=true"
			flags = append(flags, "--master_flags=ysql_yb_enable_listen_notify=true")
		}
	}
	return flags
}

func dockerAnswers(ctx context.Context) (err error) {
	// Without any Docker host the library panics.
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("%w: %v", ErrNoDocker, problem)
		}
	}()
	log.SetDefault(log.NewNoopLogger())
	provider, err := testcontainers.ProviderDocker.GetProvider()
	if err == nil {
		err = provider.Health(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoDocker, err)
	}
	return nil
}

func imageReady(ctx context.Context, image string, pull bool) error {
	if err := dockerAnswers(ctx); err != nil {
		return err
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	defer provider.Close()
	images, err := provider.ListImages(ctx)
	if err != nil {
		return err
	}
	for _, have := range images {
		if have.Name == image {
			return nil
		}
	}
	if !pull {
		return fmt.Errorf("the Docker engine does not have %s", image)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	if err := provider.PullImage(ctx, image); err != nil {
		return fmt.Errorf("the Docker engine cannot get %s: %w", image, err)
	}
	return nil
}
