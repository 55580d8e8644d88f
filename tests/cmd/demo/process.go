//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// processVariable carries a process in the environment of this program's copies.
const processVariable = "LOCKS_DEMO_PROCESS"

// A process is one of the operating system's, started by a section.
type process struct {
	Kind, Name string
	Arguments  []string
	URL        string
	Schema     string
	Started    time.Time // the demo's start
}

// start starts a process of the section of a kind. It ends with ctx, and when the demo dies. Wait for it.
func (d *demo) start(ctx context.Context, kind, name string, arguments ...string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	request, err := json.Marshal(process{Kind: kind, Name: name, Arguments: arguments, URL: d.url, Schema: d.schema, Started: d.started})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), processVariable+"="+string(request))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// Ctrl-C goes to the demo alone, which then ends its processes in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	// Nothing is ever written: the pipe ends when the demo does.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return cmd, cmd.Start()
}

func beProcess(ctx context.Context, request string) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var p process
	err := json.Unmarshal([]byte(request), &p)
	if err == nil {
		err = errors.New("no such section")
		for _, s := range sections {
			if s.kind == p.Kind {
				err = s.process(ctx, &p)
			}
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "demo: %s: %v\n", p.Name, err)
		}
		return 1
	}
	return 0
}

// application is what the connections of a process are called in pg_stat_activity.
func (p *process) application() string { return p.Schema + "/" + p.Name }

// say prints one line with the time and the process.
func (p *process) say(format string, arguments ...any) {
	say(p.Started, p.Name, format, arguments...)
}
