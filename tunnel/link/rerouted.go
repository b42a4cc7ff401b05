package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// Rerouted is for a caller who knows that addresses or routes of this machine have changed. A link
// whose own address is gone ends, since nothing is sent from there. One whose peer would now be
// reached from another address, and was not before, may have lost its way, and is probed. way
// returns from which address another is reached, or none.
func (ses *Session) Rerouted(way func(to netip.Addr) (from netip.Addr)) {
	own, tcp := ses.sender.conn.LocalAddr().(*net.TCPAddr)
	peer, _ := ses.sender.conn.RemoteAddr().(*net.TCPAddr)
	if !tcp || peer == nil {
		return
	}
	source := way(peer.AddrPort().Addr().Unmap())
	if !source.IsValid() {
		source = netip.IPv6Unspecified() // and not that of a link that was never rerouted
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	was := ses.source
	ses.source = source
	switch {
	case source == own.AddrPort().Addr().Unmap():
	case gone(own):
		ses.failLocked(cutOff(fmt.Errorf("this machine has the address %v no longer", own.IP)))
	case source != was:
		ses.probeLocked(new(bool), ses.alive.awaits) // frames may still arrive by the way back
	}
}

// gone reports whether this machine no longer has an address.
func gone(own *net.TCPAddr) bool {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: own.IP, Zone: own.Zone})
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.EADDRNOTAVAIL)
}
