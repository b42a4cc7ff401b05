package program

import (
	"context"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// Changes of addresses are reported until the context ends. The test needs a network namespace,
// and so root.
func TestRoutesAreFollowed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	device, over := make(chan int, 1), make(chan struct{})
	changed := make(chan struct{}, 1)
	go func() {
		defer close(over)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			close(device)
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		testutil.Succeeds(t, err, "a socket in the namespace")
		device <- fd
		followRoutes(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	fd, ok := <-device
	if !ok {
		cancel()
		<-over
		t.Skip("a network namespace cannot be made here")
	}
	defer unix.Close(fd)
	loopback := testutil.Must(unix.NewIfreq("lo"))(t)
	for told := false; !told; { // the first may come before it listens
		for _, flags := range []uint16{unix.IFF_UP, 0} { // loopback has its addresses while it is up
			loopback.SetUint16(flags)
			testutil.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, loopback))
		}
		runtime.Gosched()
		select {
		case <-changed:
			told = true
		default:
		}
	}
	cancel()
	<-over
}
