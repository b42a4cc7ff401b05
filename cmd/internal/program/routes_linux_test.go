package program

import (
	"context"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// Changes of addresses are reported until the context ends, few times if there are many. The test
// needs a network namespace, and so root.
func TestRoutesAreFollowed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	device, changed := make(chan int, 1), make(chan struct{}, 1)
	wait := testutil.InNetwork(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		testutil.Succeeds(t, err, "a socket in the namespace")
		device <- fd
		followRoutes(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	fd := <-device
	defer unix.Close(fd)
	loopback := testutil.Must(unix.NewIfreq("lo"))(t)
	change := func() {
		for _, flags := range []uint16{unix.IFF_UP, 0} { // loopback has its addresses while it is up
			loopback.SetUint16(flags)
			testutil.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, loopback))
		}
	}
	began := time.Now()
	for told := 0; told < 2; { // the first may come before it listens
		change()
		runtime.Gosched()
		select {
		case <-changed:
			told++
		default:
		}
	}
	testutil.AtLeast(t, time.Since(began), 2*settle, "the time until changes without a pause were reported twice")
	change()
	<-changed
	cancel()
	wait()
}
