//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dieWithUs makes a child end when the thread that started it does, at the latest.
func dieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func loadAverage() (load float64, err error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &load)
	}
	return load, err
}

// A usage is processor time in ticks: what could be used since the start of the machine, what was, and what this program and all its
// children have used.
type usage struct{ all, busy, ours float64 }

func used() usage {
	var u usage
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		ticks, _ := strconv.ParseFloat(field, 64)
		if i == 0 || i > 8 { // The name; and guests, who are in what users have.
			continue
		}
		u.all += ticks
		if i != 4 && i != 5 { // idle and waiting
			u.busy += ticks
		}
	}
	u.ours = processorTime(os.Getpid()).Seconds() * ticksPerSecond
	return u
}

// ticksPerSecond is fixed by Linux for all that it shows in /proc.
const ticksPerSecond = 100

// processorTime is what a process and all its children, the dead ones too, have used.
func processorTime(root int) time.Duration {
	parents, ticks := map[int]int{}, map[int]float64{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
		for _, field := range fields[11:15] { // of its own and of its dead children, as user and in the kernel
			n, _ := strconv.ParseFloat(field, 64)
			ticks[pid] += n
		}
	}
	sum := 0.0
	for pid := range parents {
		for ancestor := pid; ancestor > 1; ancestor = parents[ancestor] {
			if ancestor == root {
				sum += ticks[pid]
				break
			}
		}
	}
	return time.Duration(sum / ticksPerSecond * float64(time.Second))
}

// serverPID is the process of PostgreSQL that all others of it come from.
func (l *lab) serverPID() (pid int) {
	text, err := os.ReadFile(filepath.Join(l.server.Dir, "data", "postmaster.pid"))
	if err == nil {
		fmt.Sscan(string(text), &pid)
	}
	return pid
}

// others is the share of the machine that others had since before, from 0 to 1.
func others(before usage) float64 {
	now := used()
	all := now.all - before.all
	if all <= 0 {
		return 0
	}
	return min(1, max(0, (now.busy-before.busy)-(now.ours-before.ours))/all)
}

// machine describes what this runs on.
func machine() string {
	model := runtime.GOARCH
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	memory, _ := os.ReadFile("/proc/meminfo")
	var kilobytes float64
	fmt.Sscanf(string(memory), "MemTotal: %f", &kilobytes)
	all := fmt.Sprintf("%d cores of %s, %.0f GB", runtime.NumCPU(), model, kilobytes/(1<<20))
	// In a virtual machine this decides what it costs to wake a process.
	if text, err := os.ReadFile("/sys/module/haltpoll/parameters/guest_halt_poll_ns"); err == nil {
		all += ", `guest_halt_poll_ns=" + strings.TrimSpace(string(text)) + "`"
	}
	return all
}
