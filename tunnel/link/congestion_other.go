//go:build !linux

package link

import "net"

type congestion struct{}

func newCongestion(net.Conn) congestion { return congestion{} }
func (*congestion) beforeTurn(int)      {}
