//go:build linux

package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/unixsocket"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

const (
	// handoverVersion is that of the messages and of what a Snapshot means. Agents of
	// different versions hand nothing over.
	handoverVersion = 1

	// maxHandoverText and maxHandoverBytes bound a message: its JSON, and the bytes of a
	// connection, of which resume keeps up to 16 MiB.
	maxHandoverText  = 64 << 10
	maxHandoverBytes = 32 << 20

	// handoverTimeout bounds a message that is due, to be sent or received, by the time that
	// this process runs (wait.Awake): on a machine that was suspended, the other one stood
	// still, too.
	handoverTimeout = 10 * time.Second
)

// The messages of a hand-over (docs/handover.md).
const (
	msgHello   = "hello"   // successor: what it is
	msgWelcome = "welcome" // holder: what it is, and the read end of its life line
	msgRefused = "refused" // holder: why not
	msgPorts   = "ports"   // successor: it needs the holder's ports
	msgYielded = "yielded" // holder: they are free
	msgReady   = "ready"   // successor: it has a server
	msgOffer   = "offer"   // holder: a connection, and its socket
	msgEnd     = "end"     // holder: the end of a batch
	msgTaken   = "taken"   // successor: it has the batch
	msgConfirm = "confirm" // holder: the batch is the successor's
	msgDone    = "done"    // holder: there are no more connections
)

// message is one message. Which fields it has depends on its kind.
type message struct {
	Kind    string           `json:"kind"`
	Version int              `json:"version,omitempty"`
	ID      string           `json:"id,omitempty"`
	Servers []string         `json:"servers,omitempty"`
	Reason  string           `json:"reason,omitempty"`
	Conn    *resume.Snapshot `json:"conn,omitempty"`
	Kept    int              `json:"kept,omitempty"` // how many of the bytes behind it are Conn.Kept

	file *os.File // a socket, or the life line; nil: none
}

// wire sends and receives messages. It may be used by one sender and one receiver.
type wire struct{ conn *net.UnixConn }

// send sends m, with a duplicate of the descriptor fd if that is not negative.
func (w wire) send(m message, fd int) error {
	parts, err := encode(m)
	if err != nil {
		return err
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	defer due(w.conn.SetWriteDeadline)()
	n, _, err := w.conn.WriteMsgUnix(parts[0], rights, nil)
	if err != nil {
		return err
	}
	parts[0] = parts[0][n:]
	_, err = parts.WriteTo(w.conn) // nothing where nothing is left: the other end may have hung up by then
	return err
}

// due sets the deadline once handoverTimeout has passed; met ends that.
func due(set func(time.Time) error) (met func()) {
	_ = set(time.Time{})
	return wait.Awake(handoverTimeout, func() { _ = set(time.Unix(1, 0)) })
}

// headSize is that of the two lengths before a message.
const headSize = 8

// encode returns m as it is sent, without its file. The first part is the head and the text.
// The others are the bytes of the connection, which may be 32 MiB and are not copied.
func encode(m message) (net.Buffers, error) {
	parts, size := make(net.Buffers, 1), 0
	if c := m.Conn; c != nil {
		m.Kept = tunnel.LenAll(c.Kept)
		for _, kept := range c.Kept {
			parts = append(parts, kept.Bytes())
		}
		parts, size = append(parts, c.Owed), m.Kept+len(c.Owed)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
	head = binary.BigEndian.AppendUint32(head, uint32(size))
	parts[0] = append(head, text...)
	return parts, nil
}

// receive returns the next message, for which it waits until then. Its file is the
// caller's.
func (w wire) receive(until time.Time) (m message, err error) {
	_ = w.conn.SetReadDeadline(until)
	head, rights := make([]byte, headSize), make([]byte, unix.CmsgSpace(4))
	n, rightsLen, flags, _, err := w.conn.ReadMsgUnix(head, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return m, err
	}
	file, err := fileOf(rights[:rightsLen])
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("more descriptors than one in a message")
	}
	if err == nil {
		defer due(w.conn.SetReadDeadline)()
		_, err = io.ReadFull(w.conn, head[n:])
	}
	if err == nil {
		m, err = decode(head, w.conn)
	}
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return message{}, fmt.Errorf("a message was cut short: %v", err) // no timeout of the caller's: the next bytes are no head
	}
	m.file = file
	return m, nil
}

// decode returns the message with that head, whose rest it reads.
func decode(head []byte, rest io.Reader) (m message, err error) {
	size, bytes := binary.BigEndian.Uint32(head), int(binary.BigEndian.Uint32(head[4:]))
	if size > maxHandoverText || uint(bytes) > maxHandoverBytes {
		return m, fmt.Errorf("a message of %d and %d bytes", size, bytes)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(rest, text); err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, err
	}
	c := m.Conn
	if m.Kept < 0 || m.Kept > bytes || c == nil && bytes > 0 {
		return m, fmt.Errorf("%d of %d bytes", m.Kept, bytes)
	}
	if c == nil {
		return m, nil
	}
	if c.Kept, err = readChunks(rest, m.Kept); err != nil {
		return m, err
	}
	c.Owed = make([]byte, bytes-m.Kept)
	if _, err = io.ReadFull(rest, c.Owed); err == nil {
		err = c.Check()
	}
	if err != nil {
		tunnel.ReleaseAll(c.Kept)
	}
	return m, err
}

// readChunks reads n bytes to where they are kept, so that they are not copied once more.
func readChunks(from io.Reader, n int) (all []tunnel.Chunk, err error) {
	for n > 0 && err == nil {
		c := tunnel.NewChunk(min(n, tunnel.RecordRoom))
		all, n = append(all, c), n-c.Len()
		_, err = io.ReadFull(from, c.Bytes())
	}
	if err != nil {
		tunnel.ReleaseAll(all)
	}
	return all, err
}

// fileOf returns the descriptor that came with a message; nil: none.
func fileOf(rights []byte) (*os.File, error) {
	files, err := filesOf(rights)
	if len(files) == 0 {
		return nil, err
	}
	closeAll(files[1:]) // the kernel has rounded up the room for one
	return files[0], err
}

// filesOf returns the descriptors that came with a message.
func filesOf(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, err
}

// sameUser returns an error unless the process at the other end runs as the user that this
// one does.
func sameUser(c *net.UnixConn) error {
	uid, known := unixsocket.PeerUID(c)
	if own := os.Geteuid(); !known || uid != own {
		return fmt.Errorf("the process at the other end is of user %d, this one of user %d", uid, own)
	}
	return nil
}
