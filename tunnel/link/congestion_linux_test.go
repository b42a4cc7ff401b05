package link

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// TestBBRThatForgotBulkBeginsAnew: only where the rate has fallen far below what
// bulk had, and only bulk looks.
func TestBBRThatForgotBulkBeginsAnew(t *testing.T) {
	near, far := testutil.Pair(t)
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(io.Discard, far); far.Close() }()
	defer func() { near.Close(); <-read }()

	s := newSocket(near)
	c := &s.congestion
	starts := func() bool {
		var info *unix.TCPBBRInfo
		if err := s.raw.Control(func(fd uintptr) {
			info, _ = unix.GetsockoptTCPCCBBRInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_CC_INFO)
		}); err != nil {
			t.Fatal(err)
		}
		return info.Bw_lo == 0 && info.Bw_hi == 0 || info.Pacing_gain > startupGain // 0: nothing was acknowledged yet
	}
	s.beforeTurn(bulkTurn)
	if c.off {
		t.Skip("no BBR here")
	}
	for end := time.Now().Add(10 * time.Second); starts(); {
		if time.Now().After(end) {
			t.Skip("BBR does not leave its start over loopback")
		}
		if _, err := near.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	// Whatever is still under way could end a start as soon as it has begun.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		var info *unix.TCPInfo
		if err := s.raw.Control(func(fd uintptr) {
			info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}); err != nil {
			t.Fatal(err)
		}
		if info.Unacked == 0 && info.Notsent_bytes == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what was written does not arrive")
		}
	}
	look := func(size int) { c.next = time.Time{}; s.beforeTurn(size) }
	if look(bulkTurn); starts() || c.best == 0 {
		t.Errorf("bulk that goes well was begun anew; its rate is %d", c.best)
	}
	c.best = 1 << 50
	if look(bulkTurn - 1); starts() {
		t.Error("a small message began anew")
	}
	if look(bulkTurn); !starts() {
		t.Error("BBR goes on with a rate that is not that of bulk")
	}
}
