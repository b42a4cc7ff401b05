package agent

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// storeKeeper is the part of a service manager that keeps a descriptor.
type storeKeeper struct {
	conn *net.UnixConn
	kept chan int // the descriptor of FDSTORE
	told chan string
}

func newStoreKeeper(t *testing.T) *storeKeeper {
	t.Helper()
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	k := &storeKeeper{conn: testutil.Must(net.ListenUnixgram("unixgram", at))(t), kept: make(chan int, 1), told: make(chan string, 16)}
	over := make(chan struct{})
	go func() { defer close(over); k.serve() }()
	t.Cleanup(func() { _ = k.conn.Close(); <-over })
	t.Setenv("NOTIFY_SOCKET", at.Name)
	t.Setenv("FDSTORE", "1")
	return k
}

func (k *storeKeeper) serve() {
	text, rights := make([]byte, 100), make([]byte, 100)
	for {
		n, rightsLen, _, _, err := k.conn.ReadMsgUnix(text, rights)
		if err != nil {
			return
		}
		files, _ := filesOf(rights[:rightsLen])
		state := string(text[:n])
		if strings.HasPrefix(state, "FDSTORE=1\n") {
			fd, _ := unix.Dup(int(files[0].Fd()))
			select {
			case k.kept <- fd:
			default: // no room
				_ = unix.Close(fd)
			}
		}
		k.told <- state
		for _, f := range files { // ends a barrier
			_ = f.Close()
		}
	}
}

// Connections that an agent leaves to the service manager go on in the next process, and
// lose no byte that is under way. That process has the agent's id.
func TestConnectionsOutliveARestart(t *testing.T) {
	const conns = maxRights + 10
	keeper := newStoreKeeper(t)
	ca, config := newCA(t)
	server := newTestServer(t, ca, "server-1", false)
	var link atomic.Pointer[arrival]
	opener := resume.New(resume.Options{Window: time.Minute})
	defer opener.Wait()
	defer opener.Close()
	dialer := opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) { return link.Load().Dial(ctx, f) }))
	start := func(s *Store) (restart func()) {
		opts := testOptions(config, server.address())
		opts.ResumeWindow, opts.Store = time.Minute, s
		if s.ID() != "" {
			opts.ID = s.ID()
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		a, done := testutil.Must(New(opts))(t), make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		arrived := server.next()
		link.Store(&arrived)
		return func() {
			cancel(errRestart)
			testutil.NoError(t, testutil.Receive(t, "the agent ends", done))
		}
	}
	restart := start(OpenStore(logging.Silent()))
	open := opened(t, dialer, conns)
	restart()
	next := OpenStore(logging.Silent())
	testutil.NoError(t, next.take(testutil.Receive(t, "the descriptor is kept", keeper.kept)))
	testutil.Requires(t, len(next.offers) == conns && next.ID() == "agent-1",
		"%d connections of agent %q are left", len(next.offers), next.ID())
	defer start(next)()
	goOn(t, open)
	for range 4 { // FDSTORE, FDSTOREREMOVE, and a barrier after each
		state := testutil.Receive(t, "the service manager is told", keeper.told)
		testutil.Holds(t, !strings.Contains(state, "FDNAME") || strings.HasSuffix(state, "FDNAME="+storeName),
			"told %q", state)
	}
}

// A process that dies before it has left its connections leaves none: they may have gone on
// in it.
func TestStoreWithoutCommit(t *testing.T) {
	newStoreKeeper(t)
	pair := testutil.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0))(t)
	defer unix.Close(pair[0])
	file := testutil.Must(writeOffers("agent-1", nil))(t)
	defer file.Close()
	testutil.NoError(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(file.Fd())), nil, 0))
	testutil.Fails(t, OpenStore(logging.Silent()).take(pair[1]), "they were taken")
}

// A socket that brings bytes without descriptors, perhaps for ever, is none that an agent has
// left.
func TestStoreOfAnotherSocket(t *testing.T) {
	pair := testutil.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	testutil.Must(unix.Write(pair[0], []byte("more")))(t)
	if files, err := receiveAll(pair[1]); err == nil || !strings.Contains(err.Error(), "without descriptors") || len(files) > 0 {
		t.Errorf("got %d files, %v", len(files), err)
	}
}

// Connections go on in a process whose service manager has no room for them, and says
// nothing of it.
func TestStoreWithoutRoom(t *testing.T) {
	keeper := newStoreKeeper(t)
	s, moves := OpenStore(logging.Silent()), []*resume.Move{{Snapshot: resume.Snapshot{Ended: true, Left: true}}}
	testutil.NoError(t, s.put("agent-1", moves))
	testutil.Fails(t, s.put("agent-1", moves), "what was not kept counts as kept")
	kept := testutil.Receive(t, "the descriptor is kept", keeper.kept)
	hup := []unix.PollFd{{Fd: int32(kept)}}
	testutil.Equal(t, testutil.Must(unix.Poll(hup, 0))(t), 0, "the service manager sees %v, and drops it", hup)
	next := OpenStore(logging.Silent())
	testutil.NoError(t, next.take(kept))
	testutil.Equal(t, len(next.offers), 1, "connections are left")
}

// Of connections that cannot all be read none is taken: sockets may belong to others.
func TestStoreThatIsCutShort(t *testing.T) {
	keeper := newStoreKeeper(t)
	s := OpenStore(logging.Silent())
	testutil.NoError(t, s.put("agent-1", []*resume.Move{{Snapshot: resume.Snapshot{Ended: true, Left: true}}, {Snapshot: resume.Snapshot{From: 1, Ended: true, Left: true}}}))
	testutil.Fails(t, s.take(testutil.Receive(t, "the descriptor is kept", keeper.kept)), "no error")
	testutil.Holds(t, len(s.offers) == 0 && s.ID() == "", "%d connections of agent %q are taken", len(s.offers), s.ID())
}
