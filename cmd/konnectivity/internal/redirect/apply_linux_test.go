package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// A rule that leaves a connection alone comes before those that redirect: of the user, to this
// machine, to both networks of its links, and to the exception.
func TestRuleOrder(t *testing.T) {
	p := &Plan{To: prefixes("10.0.0.0/8", "::/0"), Except: prefixes("10.1.0.0/16"), Port: 1}
	for i, rule := range p.rules() {
		last := fmt.Sprintf("%T", rule[len(rule)-1])
		testutil.Equal(t, last == "*expr.Verdict", i < 5, "rule %d, which ends with %s, leaves a connection alone", i, last)
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
