//go:build !unix

package server

import (
	"context"
	"errors"
)

// ErrNoBinaries says that servers are started on Unix alone.
var ErrNoBinaries = errors.New("throwaway PostgreSQL servers are started on Unix alone, such as Linux, macOS and WSL")

// Options are those of servers on Unix.
type Options struct {
	Settings, Env []string
	Durable, Keep bool
}

// A Server is one that cannot be started here.
type Server struct {
	Dir, BinDir string
	Port        int
}

// FindBinaries answers ErrNoBinaries.
func FindBinaries() (string, error) { return "", ErrNoBinaries }

// Start answers ErrNoBinaries.
func Start(context.Context, Options) (*Server, error) { return nil, ErrNoBinaries }

// Docker answers ErrNoBinaries.
func Docker(context.Context, string) (string, error) { return "", ErrNoBinaries }

// Settings are none.
func Settings(bool) []string { return nil }

// Kill answers ErrNoBinaries.
func (s *Server) Kill() error { return ErrNoBinaries }

// Restart answers ErrNoBinaries.
func (s *Server) Restart(context.Context) error { return ErrNoBinaries }

// Standby answers ErrNoBinaries.
func (s *Server) Standby(context.Context) (*Server, error) { return nil, ErrNoBinaries }

// Stop answers ErrNoBinaries.
func (s *Server) Stop() error { return ErrNoBinaries }

// StopCommand is empty.
func (s *Server) StopCommand() string { return "" }

// URL is empty.
func (s *Server) URL(string, string) string { return "" }
