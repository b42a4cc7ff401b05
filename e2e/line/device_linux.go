package line

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	deviceName = "line0"

	// deviceQueue is how many packets the kernel keeps for this process: some
	// 60 ms at 1 Gbit/s, for when it is not running. The line's own queue is
	// the Shaper's.
	deviceQueue = 5000
)

// openDevice makes a TUN device with an address in the namespace, and routes the
// /24 around it there. It is gone once closed.
func openDevice(n *Namespace, address netip.Addr, mtu int) (*os.File, error) {
	var dev *os.File
	return dev, n.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		if err := attach(fd, address, mtu); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("set up a TUN device: %w", err)
		}
		dev = os.NewFile(uintptr(fd), deviceName)
		return nil
	})
}

func attach(fd int, address netip.Addr, mtu int) error {
	tun, err := unix.NewIfreq(deviceName)
	if err != nil {
		return err
	}
	tun.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, tun); err != nil {
		return err
	}
	a, mask := address.As4(), [4]byte{255, 255, 255, 0}
	for _, set := range []struct {
		request uint
		value   func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(a[:]) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) }},
		{unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(mtu)); return nil }},
		{unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) error { r.SetUint32(deviceQueue); return nil }},
	} {
		if err := configure(deviceName, set.request, set.value); err != nil {
			return err
		}
	}
	return bringUp(deviceName)
}

// bringUp brings up an interface of the thread's namespace.
func bringUp(name string) error {
	return configure(name, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil })
}

// configure is one netdevice(7) request.
func configure(name string, request uint, value func(*unix.Ifreq) error) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := value(r); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, request, r); err != nil {
		return fmt.Errorf("request %#x of %s: %w", request, name, err)
	}
	return nil
}

// timer waits with the kernel's precision: the runtime's own timers wake a
// millisecond late, which would be a fifth of a line of 5 ms.
type timer struct{ file *os.File }

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &timer{os.NewFile(uintptr(fd), "timer")}, nil
}

// wait returns once d is over, or with the error that the timer was closed.
func (t *timer) wait(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return err
	}
	if failed != nil {
		return os.NewSyscallError("timerfd_settime", failed)
	}
	var expirations [8]byte
	_, err = t.file.Read(expirations[:])
	return err
}

func (t *timer) close() error {
	if t == nil {
		return nil
	}
	return t.file.Close()
}
