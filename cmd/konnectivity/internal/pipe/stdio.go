package pipe

import (
	"io"
	"net"
	"sync"
)

// stdioConn is standard input and output as a connection.
type stdioConn struct {
	net.Conn // nil: a Relay asks for neither addresses nor deadlines
	in       *io.PipeReader
	out      io.Writer
	once     sync.Once
}

// newStdioConn reads input on a goroutine that nobody joins: a read from a
// terminal cannot be interrupted, and the process is about to end anyway when
// nobody wants its bytes any more.
func newStdioConn(in io.Reader, out io.Writer) *stdioConn {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // nil is EOF
	}()
	return &stdioConn{in: r, out: out}
}

func (c *stdioConn) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *stdioConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite ends standard output, so that whoever reads it by a pipe knows.
func (c *stdioConn) CloseWrite() (err error) {
	c.once.Do(func() {
		if out, ok := c.out.(io.Closer); ok {
			err = out.Close()
		}
	})
	return err
}

func (c *stdioConn) Close() error {
	_ = c.in.Close()
	return c.CloseWrite()
}

func (c *stdioConn) Reset(error) error { return c.in.Close() }
