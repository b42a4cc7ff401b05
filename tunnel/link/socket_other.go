//go:build !linux

package link

import "net"

const tellsSegments = false

// socket has nothing to look after where the kernel says nothing of the line.
type socket struct{}

func newSocket(net.Conn) socket        { return socket{} }
func (*socket) beforeTurn(int, uint64) {}
func (*socket) fragment()              {}
func (*socket) line() Line             { return Line{} }
