package redirect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// packet is what rules compare of the first packet of a connection.
type packet struct {
	uid   uint32
	out   string // the interface
	proto byte
	to    netip.AddrPort
}

// redirected returns the port that a packet is redirected to, as the kernel finds it by the
// rules; 0: it is left alone.
func (p packet) redirected(all []match) uint16 {
	family, network := byte(unix.NFPROTO_IPV4), append(make([]byte, 16), p.to.Addr().AsSlice()...)
	if p.to.Addr().Is6() {
		family, network = unix.NFPROTO_IPV6, append(make([]byte, 24), p.to.Addr().AsSlice()...)
	}
	meta := map[expr.MetaKey][]byte{
		expr.MetaKeySKUID: binary.NativeEndian.AppendUint32(nil, p.uid), expr.MetaKeyOIFNAME: append([]byte(p.out), make([]byte, 16-len(p.out))...),
		expr.MetaKeyL4PROTO: {p.proto}, expr.MetaKeyNFPROTO: {family},
	}
	headers := map[expr.PayloadBase][]byte{
		expr.PayloadBaseNetworkHeader: network, expr.PayloadBaseTransportHeader: binary.BigEndian.AppendUint16(make([]byte, 2), p.to.Port()),
	}
next:
	for _, rule := range all {
		var register []byte
		for _, e := range rule {
			switch e := e.(type) {
			case *expr.Meta:
				register = meta[e.Key]
			case *expr.Payload:
				register = bytes.Clone(headers[e.Base][e.Offset : e.Offset+e.Len])
			case *expr.Bitwise:
				for i := range register {
					register[i] = register[i]&e.Mask[i] ^ e.Xor[i]
				}
			case *expr.Cmp:
				if e.Op != expr.CmpOpEq {
					panic("a comparison that this knows nothing of")
				}
				if !bytes.Equal(register, e.Data) {
					continue next
				}
			case *expr.Immediate:
				register = e.Data
			case *expr.Redir:
				return binary.BigEndian.Uint16(register)
			case *expr.Verdict:
				return 0
			}
		}
	}
	return 0
}

// Rules redirect connections to the networks, and leave alone those of the user, to this machine,
// to link-local addresses, to exceptions and to nameservers.
func TestRules(t *testing.T) {
	p := &Plan{To: prefixes("0.0.0.0/0", "fd00::/8"), Except: prefixes("10.1.0.0/16"), DNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, UID: 7, Port: 8096}
	for to, want := range map[string]uint16{
		"10.2.0.1:443": 8096, "[fd00::1]:443": 8096, "[2001:db8::1]:443": 0, "10.1.2.3:443": 0, "169.254.1.1:80": 0, "[fe80::1]:443": 0,
		"10.96.0.10:53": 0, "10.96.0.10:443": 8096, "10.96.0.11:53": 8096,
	} {
		connection := packet{uid: 1, out: "eth0", proto: unix.IPPROTO_TCP, to: netip.MustParseAddrPort(to)}
		testutil.Equal(t, connection.redirected(p.rules()), want, "where one to %s goes", to)
		for _, leave := range []func(*packet){
			func(p *packet) { p.uid = 7 }, func(p *packet) { p.out = "lo" }, func(p *packet) { p.proto = unix.IPPROTO_UDP },
		} {
			other := connection
			leave(&other)
			testutil.Equal(t, other.redirected(p.rules()), 0, "where %+v goes", other)
		}
	}
}

// As many rules as there may be are set, and the kernel's answers to all of them read.
func TestMostRules(t *testing.T) {
	p := &Plan{Port: 1}
	for i := range byte(maxNetworks) {
		network := func(of byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, of, i}), 48) }
		p.To, p.Except, p.DNS = append(p.To, network(1)), append(p.Except, network(2)), append(p.DNS, network(3).Addr())
	}
	var err error
	testutil.InNetwork(t, func() { err = errors.Join(p.Apply(), p.Apply(), Remove()) })()
	if err != nil && strings.HasPrefix(err.Error(), "this kernel cannot") {
		t.Skip("it needs nftables: ", err)
	}
	testutil.NoError(t, err)
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for err, want := range map[error]string{
		nil:            "",
		unix.EPERM:     "CAP_NET_ADMIN is missing",
		unix.ENOENT:    "modules nf_tables, nft_chain_nat and nft_redir",
		unix.EOVERFLOW: "change nftables rules: ",
	} {
		var wrapped error
		if err != nil {
			wrapped = fmt.Errorf("receive: %w", err)
		}
		got := explain(wrapped)
		testutil.Holds(t, (got == nil) == (err == nil) && (got == nil || strings.Contains(got.Error(), want)),
			"%v: %v, want %q", err, got, want)
		testutil.Holds(t, err != unix.EOVERFLOW || errors.Is(got, err), "%v hides %v", got, err)
	}
}
