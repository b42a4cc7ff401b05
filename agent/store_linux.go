package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"konnectivity/internal/wait"
	"konnectivity/tunnel/resume"
)

const (
	// storeName is the name of what the service manager keeps (sd_notify(3), FDNAME).
	storeName = "handover"

	// storeTime bounds the wait for the service manager.
	storeTime = 5 * time.Second

	// firstPassed is the first descriptor that a service manager passes (sd_listen_fds(3)).
	firstPassed = 3

	// maxRights is how many descriptors a message takes (unix(7), SCM_MAX_FD).
	maxRights = 253

	// storeCommit is the message behind the last descriptor: the connections are the next
	// process's from then on.
	storeCommit = 1
)

// errRestart is the cause with which a context ends whose process is to be restarted.
var errRestart = errors.New("the service is restarted")

// Store passes connections from one process of a systemd service to the next, by the
// service's file descriptor store (docs/handover.md). A nil Store does nothing.
type Store struct {
	notify string // path of the service manager's socket
	log    logrus.FieldLogger

	id     string    // of the process before
	offers []message // its connections
}

// WatchRestart returns a context that ends with ctx, and when this process is to be
// restarted: SIGUSR2. It is called first of all: before, the signal has no effect, and the
// service manager would wait for this process. stop frees what that takes.
func WatchRestart(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	over := wait.Go(func() {
		select {
		case <-signals:
			cancel(errRestart)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-over
	}
}

// OpenStore takes what the process before has left, and returns nil where the service has no
// store. It blocks for some seconds at most.
func OpenStore(log logrus.FieldLogger) *Store {
	s := &Store{notify: os.Getenv("NOTIFY_SOCKET"), log: log}
	if room, _ := strconv.Atoi(os.Getenv("FDSTORE")); s.notify == "" || room < 1 {
		return nil
	}
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && os.Getenv("LISTEN_FDS") == "1" {
		if err := s.take(firstPassed); err != nil {
			log.WithError(err).Warn("the connections of the process before have ended")
		}
	}
	return s
}

// take reads what the process before has put into a socket, and closes that. No process
// after this one finds it, too.
func (s *Store) take(socket int) error {
	unix.CloseOnExec(socket)
	defer unix.Close(socket)
	if err := s.tell("FDSTOREREMOVE=1\nFDNAME=" + storeName); err != nil {
		return err
	}
	return s.read(socket)
}

// ID returns the id of the process before; "": there was none.
func (s *Store) ID() string {
	if s == nil {
		return ""
	}
	return s.id
}

// adopt goes on with the connections of the process before.
func (s *Store) adopt(a *Agent) {
	if s == nil || len(s.offers) == 0 {
		return
	}
	s.log.WithField("connections", a.adopt(s.offers, s.log)).Info("took over the connections of the process before")
	s.offers = nil
}

// keep leaves all connections that can be moved to the next process. It returns false if
// they go on here.
func (s *Store) keep(a *Agent) bool {
	a.ends.SetHandingOver(true) // until this process ends, an opener is to ask again
	var moves []*resume.Move
	for all := a.ends.Moves(); ; {
		batch := all.Next(handoverBatch, handoverBytes)
		if len(batch) == 0 {
			break
		}
		moves = append(moves, batch...)
	}
	log := s.log.WithField("connections", len(moves))
	if err := s.put(a.opts.ID, moves); err != nil {
		log.WithError(err).Warn("the service manager did not keep the connections")
		for _, m := range moves {
			_ = m.Undo(a.serve)
		}
		a.ends.SetHandingOver(false)
		return false
	}
	for _, m := range moves {
		m.Done()
	}
	log.Info("left the connections to the next process")
	return true
}

// put stores one socket, in whose queue all descriptors are: the first is a file with the
// messages, the others belong to them in order.
func (s *Store) put(id string, moves []*resume.Move) error {
	if len(moves) == 0 {
		return nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	stored := os.NewFile(uintptr(pair[1]), storeName)
	defer stored.Close()
	file, err := writeOffers(id, moves)
	if err != nil {
		return err
	}
	defer file.Close()
	fds := []int{int(file.Fd())}
	for _, m := range moves {
		if m.Left {
			continue
		}
		if err := m.Socket.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil { // open until Done
			return err
		}
	}
	for part := range slices.Chunk(fds, maxRights) {
		if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(part...), nil, 0); err != nil {
			return err
		}
	}
	if err := s.tell("FDSTORE=1\nFDNAME="+storeName, pair[1]); err != nil {
		return err
	}
	_ = stored.Close() // if the service manager has not kept it, the next message fails
	// It takes along its own end, which must stay open: the service manager drops what hangs
	// up, and knows FDPOLL=0 since systemd 246 only.
	return unix.Sendmsg(pair[0], []byte{storeCommit}, unix.UnixRights(pair[0]), nil, unix.MSG_NOSIGNAL)
}

// writeOffers returns a file with the id of this process and its connections.
func writeOffers(id string, moves []*resume.Move) (*os.File, error) {
	fd, err := unix.MemfdCreate(storeName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), storeName)
	messages := []message{{Kind: msgWelcome, Version: handoverVersion, ID: id}}
	for _, m := range moves {
		messages = append(messages, message{Kind: msgOffer, Conn: &m.Snapshot})
	}
	for _, m := range messages {
		parts, err := encode(m)
		if err == nil {
			_, err = parts.WriteTo(file)
		}
		if err != nil {
			_ = file.Close()
			return nil, err
		}
	}
	return file, nil
}

// read reads what put has written: all of it, or nothing.
func (s *Store) read(socket int) error {
	files, err := receiveAll(socket)
	if err == nil {
		s.id, s.offers, err = readOffers(files)
	}
	if err != nil {
		closeAll(files)
	} else {
		_ = files[0].Close()
	}
	return err
}

// readOffers reads what writeOffers has written into the first of files. The others are the
// sockets of its connections, in order.
func readOffers(files []*os.File) (id string, offers []message, err error) {
	if _, err := files[0].Seek(0, io.SeekStart); err != nil {
		return "", nil, err
	}
	from := bufio.NewReader(files[0])
	first, err := readMessage(from)
	if err != nil || first.Version != handoverVersion {
		return "", nil, fmt.Errorf("they are those of version %d, this one has version %d (%v)", first.Version, handoverVersion, err)
	}
	for sockets := files[1:]; ; {
		m, err := readMessage(from)
		switch {
		case err == io.EOF && len(sockets) == 0:
			return first.ID, offers, nil
		case err == io.EOF:
			return "", nil, errors.New("a socket without its connection")
		case err != nil:
			return "", nil, err
		case m.Conn == nil || !m.Conn.Left && len(sockets) == 0:
			return "", nil, errors.New("a connection without its socket")
		}
		if !m.Conn.Left {
			m.file, sockets = sockets[0], sockets[1:]
		}
		offers = append(offers, m)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func readMessage(from io.Reader) (message, error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(from, head); err != nil {
		return message{}, err
	}
	return decode(head, from)
}

// receiveAll returns the descriptors in the queue of a socket, if they were committed.
func receiveAll(socket int) (files []*os.File, err error) {
	kind, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxRights))
	for {
		n, rightsLen, flags, _, err := unix.Recvmsg(socket, kind, rights, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err != nil || n == 0 {
			return files, errors.New("the process before ended before it had left them all")
		}
		more, err := filesOf(rights[:rightsLen])
		if kind[0] == storeCommit && len(files) > 0 {
			closeAll(more) // the other end of socket
			return files, nil
		}
		switch {
		case err != nil:
		case flags&unix.MSG_CTRUNC != 0: // the next ones would be taken for others
			err = errors.New("this process may not have that many descriptors; raise LimitNOFILE")
		case len(more) == 0:
			err = errors.New("a message without descriptors: it is no socket that an agent has left")
		}
		if files = append(files, more...); err != nil {
			return files, err
		}
	}
}

// tell sends the service manager a state and a descriptor, and waits until it has read that
// (sd_notify_barrier(3)).
func (s *Store) tell(state string, fds ...int) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	read, written, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	defer written.Close()
	bound := unix.NsecToTimeval(int64(storeTime))
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &bound); err != nil {
		return err
	}
	to := &unix.SockaddrUnix{Name: s.notify}
	if err := unix.Sendmsg(socket, []byte(state), unix.UnixRights(fds...), to, 0); err != nil {
		return err
	}
	if err := unix.Sendmsg(socket, []byte("BARRIER=1"), unix.UnixRights(int(written.Fd())), to, 0); err != nil {
		return err
	}
	_ = written.Close()
	_ = read.SetReadDeadline(time.Now().Add(storeTime))
	if _, err := read.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("the service manager does not answer: %w", err)
	}
	return nil
}
