package lockstest

import (
	"context"
	"errors"
	"os"

	"github.com/seed4787c507/locks/lockstest/server"
)

// own starts a server that ends with this process.
func own(ctx context.Context) (url string, err error) {
	if image := os.Getenv("LOCKSTEST_IMAGE"); image != "" {
		return server.Docker(ctx, image)
	}
	s, err := server.Start(ctx, server.Options{})
	if errors.Is(err, server.ErrNoBinaries) {
		return "", errNone
	} else if err != nil {
		return "", err
	}
	return s.URL("postgres", "postgres"), nil
}
