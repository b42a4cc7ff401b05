package main

import (
	"io"
	"net"
	"sync"
)

// stdio is standard input and output as a connection.
type stdio struct {
	net.Conn // nil: a Relay uses neither addresses nor deadlines
	in       *io.PipeReader
	out      io.Writer
	once     sync.Once
	midLine  bool // whether the last line of out has no end
}

// newStdio returns a connection that reads from in and writes to out. The goroutine that
// reads in is not joined: a read from a terminal cannot be interrupted, and the
// process ends soon after the connection is closed.
func newStdio(in io.Reader, out io.Writer) *stdio {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // nil is EOF
	}()
	return &stdio{in: r, out: out}
}

func (c *stdio) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c *stdio) Write(p []byte) (int, error) {
	n, err := c.out.Write(p)
	if n > 0 {
		c.midLine = p[n-1] != '\n'
	}
	return n, err
}

// CloseWrite closes standard output, so that a program that reads it through a pipe
// sees the end.
func (c *stdio) CloseWrite() (err error) {
	c.once.Do(func() {
		if out, ok := c.out.(io.Closer); ok {
			err = out.Close()
		}
	})
	return err
}

func (c *stdio) Close() error {
	_ = c.in.Close()
	return c.CloseWrite()
}

func (c *stdio) Reset(error) error { return c.in.Close() }
