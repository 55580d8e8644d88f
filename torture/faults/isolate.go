//go:build linux

package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

const isolated = "LOCKS_TORTURE_ISOLATED"

// Isolate runs this program once more, in network and mount namespaces of its own, waits for it and exits as it did; there Isolate does
// nothing. Packets can be dropped there and volumes mounted without anybody outside noticing, and both end with the process. Where a
// process may not do that it does nothing, and Missing says what is missing.
func Isolate() {
	if os.Getenv(isolated) != "" || os.Getuid() != 0 {
		return
	}
	if exec.Command("unshare", "--net", "--mount", "true").Run() != nil {
		return
	}
	runtime.LockOSThread() // Pdeathsig is about the thread.
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		fmt.Fprintln(os.Stderr, "isolate:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Isolated says whether Isolate has done its work.
func Isolated() bool { return os.Getenv(isolated) != "" }

func prepareIsolation() error {
	if err := tool("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	// What processes leave in shared memory when they are killed goes with the namespace.
	if !mounted("/dev/shm", "locks-torture") {
		return syscall.Mount("locks-torture", "/dev/shm", "tmpfs", 0, "")
	}
	return nil
}

func mounted(path, source string) bool {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	return bytes.Contains(mounts, []byte(source+" "+path+" tmpfs"))
}

// mountVolume makes a volume of a size of its own.
func mountVolume(path string, bytes int64) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("locks-torture", path, "tmpfs", 0, "mode=0777,size="+strconv.FormatInt(bytes, 10)); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

func unmountVolume(path string) error {
	return errors.Join(syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(path))
}

var drops atomic.Int32

// dropPackets drops what goes to and comes from TCP ports of this network namespace, without a word to anybody, until undo.
func dropPackets(ports ...int) (undo func() error, err error) {
	if !Isolated() {
		return nil, errors.New("not in a network namespace of its own")
	}
	tool("tc", "qdisc", "add", "dev", "lo", "clsact") // It may be there.
	var prefs []string
	undo = func() error {
		var failed error
		for _, pref := range prefs {
			failed = errors.Join(failed, tool("tc", "filter", "del", "dev", "lo", "ingress", "pref", pref))
		}
		return failed
	}
	for _, port := range ports {
		pref := strconv.Itoa(int(drops.Add(1)))
		if err := tool("tc", "filter", "add", "dev", "lo", "ingress", "pref", pref, "bpf", "da", "bytecode", dropProgram(port)); err != nil {
			return nil, errors.Join(err, undo())
		}
		prefs = append(prefs, pref)
	}
	return undo, nil
}

// dropProgram is a classic BPF program over an Ethernet frame: TCP over IPv4 from or to a port is dropped (2), all else is left to
// other filters (-1).
func dropProgram(port int) string {
	program := []string{
		"40 0 0 12", "21 0 8 2048", // the frame's type
		"48 0 0 23", "21 0 6 6", // the protocol
		"177 0 0 14",                                // the length of the IP header
		"72 0 0 14", fmt.Sprintf("21 2 0 %d", port), // from
		"72 0 0 16", fmt.Sprintf("21 0 1 %d", port), // to
		"6 0 0 2",
		"6 0 0 4294967295",
	}
	return fmt.Sprintf("%d,%s,", len(program), strings.Join(program, ","))
}

func tool(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
