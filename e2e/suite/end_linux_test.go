package suite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

// startsEnv is set in a process of this test that starts a program, and is killed.
const startsEnv = "KONNECTIVITY_TEST_STARTS"

// The main thread, which does not end with its goroutine, runs no other one.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(startsEnv) != "" {
		for _, line := range endless() {
			p, err := Start("sleep", line[0], line[1:], nil)
			if err != nil {
				panic(err)
			}
			fmt.Println(p.PID())
		}
		select {}
	}
	goleak.VerifyTestMain(testutil.Settled(m))
}

// endless is programs that do not end by themselves, of another user also where root asks.
func endless() [][]string {
	all := [][]string{{"sleep", "1000"}}
	if os.Getuid() == 0 {
		all = append(all, append(AsUser("65534"), "sleep", "1000"))
	}
	return all
}

// A test that is killed leaves no program behind.
func TestProgramsEndWithTheTest(t *testing.T) {
	test := testutil.Must(Start("test", testutil.Must(os.Executable())(t), nil, []string{startsEnv + "=1"}))(t)
	t.Cleanup(test.Kill)
	testutil.Eventually(t, "the programs", func() bool { return strings.Count(test.Output(), "\n") == len(endless()) })
	for text := range strings.FieldsSeq(test.Output()) {
		pid := testutil.Must(strconv.Atoi(text))(t)
		t.Cleanup(func() {
			if t.Failed() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		testutil.Eventually(t, "sleep", func() bool { return named(pid, "sleep") })
	}
	test.Kill()
	for text := range strings.FieldsSeq(test.Output()) {
		pid := testutil.Must(strconv.Atoi(text))(t)
		testutil.Eventually(t, "the program to end", func() bool { return ended(pid) })
	}
}

// named says whether a process runs the program of that name.
func named(pid int, name string) bool {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.TrimSpace(string(comm)) == name
}

// ended says whether a process runs no more: it is gone, or a zombie.
func ended(pid int) bool {
	for _, stat := range threads(pid, "stat") {
		if !strings.Contains(stat, ") Z ") {
			return false
		}
	}
	return true
}

// A program runs on when the goroutine that called Start ends, and its thread with it.
func TestProgramsOutliveThreads(t *testing.T) {
	type start struct {
		p      *Process
		err    error
		thread int
	}
	from := make(chan start)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		p, err := Start("sleep", "sleep", []string{"1000"}, nil)
		from <- start{p, err, syscall.Gettid()}
	}()
	s := <-from
	testutil.NoError(t, s.err)
	testutil.Eventually(t, "the thread to end", func() bool {
		_, err := os.Stat(fmt.Sprint("/proc/self/task/", s.thread))
		return err != nil
	})
	testutil.Succeeds(t, testutil.Err(s.p.Stop()), "stop")
	exit, _ := errors.AsType[*exec.ExitError](s.p.err)
	testutil.Requires(t, exit != nil, "it ended with %v", s.p.err)
	testutil.Equal(t, exit.Sys().(syscall.WaitStatus).Signal(), syscall.SIGTERM, "the signal that it ended by")
}

// A program that has ended, and has not been waited for, holds no memory that says anything of it.
func TestMemoryOfAProgramThatHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	testutil.NoError(t, cmd.Start())
	p := &Process{Name: "true", cmd: cmd}
	testutil.Eventually(t, "no memory", func() bool { return testutil.Err(p.Memory()) != nil })
	testutil.NoError(t, cmd.Wait())
}
