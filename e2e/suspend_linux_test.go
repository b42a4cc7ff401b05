package e2e

import (
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// A machine that is suspended in the middle of a hand-over, for longer than a message may take,
// ends it as if nothing had been.
func TestAMachineIsSuspendedDuringAHandover(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t, 1, flags{agent: []string{"--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=10m"}})
	open := f.openEchoes(100)
	holder := f.agent
	f.startAgent()
	testutil.NoError(t, f.agent.Signal(suite.Freeze))
	testutil.NoError(t, holder.Signal(syscall.SIGTERM))
	time.Sleep(time.Second) // a batch is on its way
	testutil.NoError(t, holder.Signal(suite.Freeze))
	time.Sleep(11 * time.Second)
	testutil.NoError(t, holder.Signal(suite.Thaw))
	time.Sleep(200 * time.Millisecond) // which one runs first is chance otherwise
	testutil.NoError(t, f.agent.Signal(suite.Thaw))
	must(holder.Wait(patience))(t)
	testutil.Contains(t, holder.Output(), "handed over the connections of this agent", "what it says")
	open.check(t)
}

// The time for which an agent stood still, as on a machine that was suspended, does not count
// against a destination that reads slowly.
func TestAMachineIsSuspendedBesideASlowReader(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t, 1, flags{agent: []string{"--link=off"}})
	const size = 4 << 20
	read, got := make(chan struct{}), make(chan int64, 1)
	target := testutil.Serve(t, func(c *net.TCPConn) {
		<-read
		n, _ := io.Copy(io.Discard, c)
		got <- n
	})
	c := must(f.newClient().DialContext(within(t, patience), "tcp", target))(t)
	defer c.Close()
	must(c.Write(make([]byte, size)))(t)
	testutil.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	time.Sleep(time.Second) // the agent has what it takes, and looks at its reader
	testutil.NoError(t, f.agent.Signal(suite.Freeze))
	time.Sleep(11 * time.Second)
	testutil.NoError(t, f.agent.Signal(suite.Thaw))
	time.Sleep(500 * time.Millisecond)
	close(read)
	testutil.Equal(t, testutil.Receive(t, "the upload ends", got), size, "bytes that arrived")
}
