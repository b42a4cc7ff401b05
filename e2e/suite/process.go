package suite

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// stopTime is how long after SIGTERM a process is killed; it is much longer than
	// any drain that a test waits for, also on a busy machine.
	stopTime = 3 * time.Minute

	// keepOutput is how much of a process's output is kept for reports.
	keepOutput = 256 << 10

	// leftOpen is how long the output of a process that has ended is still read
	// if a child of it holds that open.
	leftOpen = 20 * time.Second
)

// Process is a running program.
type Process struct {
	Name string
	cmd  *exec.Cmd
	out  tail
	done chan struct{}
	err  error // valid once done is closed
}

// Start runs a program and keeps its output. env is added to an empty
// environment, so that nothing of the caller's (proxy variables, kubeconfig)
// leaks in.
func Start(name, path string, args, env []string) (*Process, error) {
	return StartOn(name, command(path, args, env), nil)
}

// StartCommand runs a command, and keeps its output where that goes nowhere else.
func StartCommand(name string, cmd *exec.Cmd) (*Process, error) { return StartOn(name, cmd, nil) }

func command(path string, args, env []string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}, env...)
	return cmd
}

// StartOn is StartCommand on a thread of which on makes something else, such as one of another
// network namespace; nil: it stays as it is. The thread waits for the process, since Linux ends
// that with the thread that has started it, not with this program (golang/go#27505).
func StartOn(name string, cmd *exec.Cmd, on func(fn func() error) error) (*Process, error) {
	if on == nil {
		on = thread
	}
	p := &Process{Name: name, cmd: cmd, done: make(chan struct{})}
	cmd.WaitDelay = cmp.Or(cmd.WaitDelay, leftOpen)
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = &p.out, &p.out
	}
	endWithThread(cmd)
	started := make(chan error, 2) // the first says whether it has started
	go func() {
		p.err = on(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			return cmd.Wait()
		})
		started <- p.err
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// thread runs fn on a thread that nothing else uses meanwhile.
func thread(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return fn()
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Memory is what a process has resident, in bytes.
type Memory struct {
	// Own is what it holds of its own: heap, stacks, written data.
	Own int64

	// File is mapped from files, most of it from the program's. The kernel decides how
	// much of that is resident: it maps the cached pages around each page in use.
	// All processes of the program share it.
	File int64

	// Most is what both together were at most, ever since the process started.
	Most int64
}

// Resident is all of it.
func (m Memory) Resident() int64 { return m.Own + m.File }

// MostOwn is what the process has held of its own at most, or a little less, where
// pages of files came later.
func (m Memory) MostOwn() int64 { return m.Most - m.File }

// Memory returns what the process holds now (proc(5), status).
func (p *Process) Memory() (Memory, error) {
	var status procfs.ProcStatus
	proc, err := procfs.NewProc(p.PID())
	if err == nil {
		status, err = proc.NewStatus()
	}
	if err == nil && status.VmRSS == 0 {
		err = fmt.Errorf("%s: it has ended", p.Name)
	}
	return Memory{Own: int64(status.VmRSS - status.RssFile), File: int64(status.RssFile), Most: int64(status.VmHWM)}, err
}

// Processor is the package's Processor of p.
func (p *Process) Processor() (ran, waited time.Duration, err error) { return Processor(p.PID()) }

// Processor returns how long a process's threads have run, and how long they
// have waited for a processor (proc(5), schedstat).
func Processor(pid int) (ran, waited time.Duration, err error) {
	for file, text := range threads(pid, "schedstat") {
		var r, w time.Duration
		if _, err := fmt.Sscan(text, (*int64)(&r), (*int64)(&w)); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", file, err)
		}
		ran, waited = ran+r, waited+w
	}
	return ran, waited, nil
}

// threads are the files of a name, and their content, of a process's threads that have not
// ended (proc(5)).
func threads(pid int, name string) iter.Seq2[string, string] {
	return func(yield func(file, text string) bool) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/%s", pid, name)) // the pattern is valid
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && !yield(file, string(text)) {
				return
			}
		}
	}
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns the exit status once the process has ended, or an error after
// the given time.
func (p *Process) Wait(patience time.Duration) (int, error) {
	select {
	case <-p.done:
		var exit *exec.ExitError
		if p.err != nil && !errors.As(p.err, &exit) && !errors.Is(p.err, exec.ErrWaitDelay) {
			return -1, p.err
		}
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(patience):
		return -1, fmt.Errorf("%s still runs after %v", p.Name, patience)
	}
}

// Signal sends a signal: SIGTERM drains the process, Freeze and Thaw do what
// they say, and SIGKILL kills it. After Freeze no thread of the process runs.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	for end := time.Now().Add(stopTime); err == nil && s == Freeze && p.runs(); {
		if time.Now().After(end) {
			return fmt.Errorf("%s still runs after SIGSTOP", p.Name)
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// runs says whether a thread is not stopped: kill(2) returns before those on other
// processors have noticed. Where there is no proc(5), none is known to run.
func (p *Process) runs() bool {
	for _, stat := range threads(p.PID(), "stat") {
		if !strings.Contains(stat, ") T ") {
			return true
		}
	}
	return false
}

// Stop ends the process gracefully, or by force if that takes too long, and
// returns its exit status.
func (p *Process) Stop() (int, error) {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(Thaw) // a frozen process does not react to the first
	code, err := p.Wait(stopTime)
	if err != nil {
		p.Kill()
	}
	return code, err
}

// Kill ends the process at once and waits for it.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// Output returns what the process printed, at most the last 256 KiB.
func (p *Process) Output() string { return p.out.String() }

// Printed returns how many bytes the process has printed.
func (p *Process) Printed() int64 {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	return p.out.all
}

// tail is a Writer that keeps the last keepOutput bytes.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
	all int64 // bytes that were written
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	t.all += int64(len(p))
	if over := t.buf.Len() - keepOutput; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
