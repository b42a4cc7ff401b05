package routes

import (
	"bufio"
	"crypto/sha256"
	"io"
	"net/netip"
)

// Kind is what the agents of a key have in common.
type Kind uint8

// The kinds of §11.
const (
	Agent        Kind = 1 + iota // a route (§9)
	Host                         // a host identifier
	Addr                         // an address identifier
	Prefix                       // a CIDR identifier
	DefaultRoute                 // the default route
	AnyAgent                     // nothing
	AnyHost                      // that they have hosts or addresses
	AnyPrefix                    // that they have CIDRs
)

// Broad says whether keys of the kind tell if agents serve at all.
func (k Kind) Broad() bool { return k >= DefaultRoute && k <= AnyPrefix }

// Key is something that agents can be found by, in a form of one size.
type Key struct {
	Kind  Kind
	Bits  uint8 // of a Prefix, counted in IPv6
	Value [16]byte
}

// OfText is the key of a route or a host.
func OfText(k Kind, text string) Key {
	sum := sha256.Sum256([]byte(text))
	return Key{Kind: k, Value: [16]byte(sum[:])}
}

// OfAddr is an address's. A zone means something on the agent's own host only, and is
// a part of its name.
func OfAddr(addr netip.Addr) Key {
	if addr.Zone() != "" {
		return OfText(Host, addr.String())
	}
	return Key{Kind: Addr, Value: addr.As16()}
}

// OfPrefix is a prefix's.
func OfPrefix(addr netip.Addr, bits int) Key {
	if addr.Is4() {
		bits += 96
	}
	return Key{Kind: Prefix, Bits: uint8(bits), Value: addr.As16()}
}

// Op is what a Record says of its key.
type Op uint8

// The operations of §11. Others are ignored.
const (
	Gone  Op = 0 // no agent has the key any more
	There Op = 1 // an agent has it
	All   Op = 2 // no key: all that the server had at the start of the stream was told
)

// Record is one thing that a server tells.
type Record struct {
	Op      Op
	Cluster string // "": the server's own; at most MaxCluster bytes
	Key     Key
}

// MaxCluster is how long a cluster's name may be.
const MaxCluster = 255

const recordHead = 4 // bytes: operation, kind, bits, length of the cluster's name

// Append appends r as it is sent.
func (r Record) Append(b []byte) []byte {
	name := r.Cluster[:min(len(r.Cluster), MaxCluster)]
	b = append(b, byte(r.Op), byte(r.Key.Kind), r.Key.Bits, byte(len(name)))
	b = append(b, name...)
	return append(b, r.Key.Value[:]...)
}

// Read reads the next Record.
func Read(from *bufio.Reader) (r Record, err error) {
	var head [recordHead]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return r, err
	}
	r.Op, r.Key.Kind, r.Key.Bits = Op(head[0]), Kind(head[1]), min(head[2], 128) // an address has no more
	name := make([]byte, head[3])
	if _, err := io.ReadFull(from, name); err != nil {
		return r, err
	}
	r.Cluster = string(name)
	_, err = io.ReadFull(from, r.Key.Value[:])
	return r, err
}
