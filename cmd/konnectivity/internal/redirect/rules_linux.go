package redirect

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// register is the register of comparisons.
const register = 1

// interfaceName is the size of an interface's name in the kernel, in bytes.
const interfaceName = 16

// match is a condition on packets, or a verdict.
type match = []expr.Any

// rules are the rules of the chain. The first that matches decides; packets that match
// none are left alone.
func (p *Plan) rules() (all []match) {
	leave := match{&expr.Verdict{Kind: expr.VerdictAccept}}
	all = append(all,
		slices.Concat(sentBy(p.UID), leave),
		slices.Concat(toThisMachine(), leave),
	)
	for _, server := range p.DNS {
		all = append(all, slices.Concat(inside(netip.PrefixFrom(server, server.BitLen())), tcp(), toPort(53), leave))
	}
	for _, network := range append(linkLocal[:], p.Except...) {
		all = append(all, slices.Concat(inside(network), leave))
	}
	for _, network := range p.To {
		all = append(all, slices.Concat(inside(network), tcp(), redirectTo(p.Port)))
	}
	return all
}

// equal loads a value into the register and compares it.
func equal(load expr.Any, with []byte) match {
	return match{load, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: with}}
}

func meta(key expr.MetaKey, is []byte) match {
	return equal(&expr.Meta{Key: key, Register: register}, is)
}

func sentBy(uid uint32) match {
	return meta(expr.MetaKeySKUID, binary.NativeEndian.AppendUint32(nil, uid))
}

// toThisMachine matches packets to any address of this machine, which the kernel routes
// through loopback.
func toThisMachine() match {
	name := make([]byte, interfaceName)
	copy(name, "lo")
	return meta(expr.MetaKeyOIFNAME, name)
}

func tcp() match { return meta(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_TCP}) }

// toPort compares the second field of a TCP header.
func toPort(port uint16) match {
	return equal(&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, binary.BigEndian.AppendUint16(nil, port))
}

// inside compares the destination in an IP header with a network.
func inside(network netip.Prefix) match {
	family, offset := byte(unix.NFPROTO_IPV6), uint32(24)
	if network.Addr().Is4() {
		family, offset = unix.NFPROTO_IPV4, 16
	}
	address := network.Addr().AsSlice()
	size := uint32(len(address))
	return slices.Concat(
		meta(expr.MetaKeyNFPROTO, []byte{family}),
		match{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}},
		equal(&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: size,
			Mask: net.CIDRMask(network.Bits(), network.Addr().BitLen()), Xor: make([]byte, size),
		}, address),
	)
}

// redirectTo sends a connection to a port of this machine. For local packets the kernel
// uses the loopback address.
func redirectTo(port uint16) match {
	return match{
		&expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Redir{RegisterProtoMin: register},
	}
}
