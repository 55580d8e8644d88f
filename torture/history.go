//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An outcome is what the caller knows of a call. no is an answer as good as yes; failed is an error that undid the call.
type outcome byte

const (
	unknown outcome = '?'
	yes     outcome = 'y'
	no      outcome = 'n'
	failed  outcome = 'f'
)

const forever = math.MaxInt64

// An op is a call and its answer. Times are of the machine's monotonic clock, which all processes share, in nanoseconds. A call without
// a known answer returned never, as far as anybody knows.
type op struct {
	number int64 // its own, among all calls of the run
	worker int
	kind   string
	name   string
	id     string
	in     []int64
	out    []int64
	outcome
	call, ret int64
}

func (o *op) String() string {
	ret := "never"
	if o.ret != forever {
		ret = fmt.Sprintf("%.6f", float64(o.ret)/1e9)
	}
	return fmt.Sprintf("%d: worker %d, %.6f to %s: %s %s %s%v = %c%v", o.number, o.worker, float64(o.call)/1e9, ret, o.kind, o.name, o.id, o.in, o.outcome, o.out)
}

// now reads the clock that the processes of this machine share.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// Ids live for an epoch, or for a window: so histories stay short, and a window can be checked when it is over and forgotten.
const (
	epoch  = 2 * time.Second
	window = 20 * time.Second
)

func windowOf(start, at int64) int { return int((at - start) / int64(window)) }

// A recorder appends the calls of one worker to files, one a window. It writes each line at once: what a killed process has asked or
// been told is kept.
type recorder struct {
	dir    string
	name   string // of the files
	start  int64  // of the run
	worker int
	next   int64
	files  map[int]*os.File
	line   []byte
	count  *atomic.Int64
}

func newRecorder(dir string, start int64, client, incarnation, worker int, count *atomic.Int64) *recorder {
	return &recorder{
		dir: dir, start: start, worker: client*100 + worker, count: count, files: map[int]*os.File{},
		name: fmt.Sprintf("%d-%d-%d", client, incarnation, worker),
		next: ((int64(client)*1000+int64(incarnation))*100 + int64(worker)) * 10_000_000,
	}
}

// A pending call has been written down and not yet answered.
type pending struct {
	number int64
	window int
	note   bool // a part of another call's answer, which is not counted
}

func (r *recorder) write(window int) {
	file := r.files[window]
	if file == nil {
		for old, file := range r.files {
			if old < window-2 {
				file.Close()
				delete(r.files, old)
			}
		}
		dir := filepath.Join(r.dir, strconv.Itoa(window))
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			file, err = os.OpenFile(filepath.Join(dir, r.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		}
		if err != nil {
			panic(err)
		}
		r.files[window] = file
	}
	r.line = append(r.line, '\n')
	if _, err := file.Write(r.line); err != nil {
		panic(err)
	}
}

func (r *recorder) numbers(values []int64) {
	for _, value := range values {
		r.line = strconv.AppendInt(append(r.line, ' '), value, 10)
	}
}

// call writes a call down before it is made.
func (r *recorder) call(window int, kind, name, id string, in ...int64) pending {
	return r.callAt(now(), window, kind, name, id, in...)
}

func (r *recorder) callAt(at int64, window int, kind, name, id string, in ...int64) pending {
	r.next++
	r.line = append(r.line[:0], "c"...)
	r.numbers([]int64{r.next, at})
	r.line = append(append(append(append(append(append(r.line, ' '), kind...), ' '), name...), ' '), id...)
	r.numbers(in)
	r.write(window)
	return pending{r.next, window, name[0] == '+'}
}

// answer writes its answer down. A call that is never answered is unknown.
func (r *recorder) answer(p pending, result outcome, out ...int64) {
	r.answerAt(now(), p, result, out...)
}

func (r *recorder) answerAt(at int64, p pending, result outcome, out ...int64) {
	r.line = append(r.line[:0], "r"...)
	r.numbers([]int64{p.number, at})
	r.line = append(r.line, ' ', byte(result))
	r.numbers(out)
	r.write(p.window)
	if !p.note {
		r.count.Add(1)
	}
}

// load reads what all workers wrote in a window, in the order of the calls.
func load(dir string, window int) ([]*op, error) {
	paths, err := filepath.Glob(filepath.Join(dir, strconv.Itoa(window), "*"))
	if err != nil {
		return nil, err
	}
	var all []*op
	for _, path := range paths {
		if all, err = read(path, all); err != nil {
			return nil, err
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].call < all[j].call })
	return all, nil
}

func read(path string, all []*op) ([]*op, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var client, incarnation, worker int
	if _, err := fmt.Sscanf(filepath.Base(path), "%d-%d-%d", &client, &incarnation, &worker); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	open := map[int64]*op{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		bad := fmt.Errorf("%s: %q", path, lines.Bytes())
		if len(fields) < 4 {
			return nil, bad
		}
		number, err1 := strconv.ParseInt(string(fields[1]), 10, 64)
		at, err2 := strconv.ParseInt(string(fields[2]), 10, 64)
		if err1 != nil || err2 != nil {
			return nil, bad
		}
		switch fields[0][0] {
		case 'c':
			if len(fields) < 6 {
				return nil, bad
			}
			in, err := numbers(fields[6:])
			if err != nil {
				return nil, bad
			}
			o := &op{
				number: number, worker: client*100 + worker, kind: string(fields[3]), name: string(fields[4]), id: string(fields[5]),
				in: in, outcome: unknown, call: at, ret: forever,
			}
			open[number] = o
			all = append(all, o)
		case 'r':
			o := open[number]
			if o == nil {
				return nil, bad
			}
			delete(open, number)
			o.outcome = outcome(fields[3][0])
			if o.outcome != unknown {
				o.ret = at
			}
			if o.out, err = numbers(fields[4:]); err != nil {
				return nil, bad
			}
		default:
			return nil, bad
		}
	}
	return all, lines.Err()
}

func numbers(fields [][]byte) ([]int64, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	values := make([]int64, len(fields))
	for i, field := range fields {
		var err error
		if values[i], err = strconv.ParseInt(string(field), 10, 64); err != nil {
			return nil, err
		}
	}
	return values, nil
}
