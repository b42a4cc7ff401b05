package redirect

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is the name of a table of our own, apart from other programs' rules.
const tableName = "konnectivity"

// readBuffer has room for the kernel's answers to all rules that there may be, some 2 KB for each:
// it makes all of them before the first is read. Beyond its default, 208 KiB, those that do not
// fit are an error, though the rules are set.
const readBuffer = 1 << 20

// Apply installs p in the network namespace of this process, and replaces the previous
// plan in the same step, so that no connection passes in between. Open connections are
// not affected.
func (p *Plan) Apply() error {
	return change(func(c *nftables.Conn, table *nftables.Table) {
		chain := c.AddChain(&nftables.Chain{
			Name: "output", Table: c.AddTable(table), Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
		})
		for _, exprs := range p.rules() {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
		}
	})
}

// Remove undoes Apply. Without a plan it does nothing.
func Remove() error { return change(func(*nftables.Conn, *nftables.Table) {}) }

// change removes our table and runs then, as one transaction.
func change(then func(*nftables.Conn, *nftables.Table)) error {
	c, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetReadBuffer(readBuffer) }))
	if err != nil {
		return explain(err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	c.AddTable(table) // a missing table cannot be deleted
	c.DelTable(table)
	then(c, table)
	return explain(c.Flush())
}

// explain turns an error of the kernel into one that says what to do.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return errors.New("CAP_NET_ADMIN is missing, which changing nftables rules takes: run this as root with that capability (in a container, securityContext with runAsUser: 0 and capabilities.add: [NET_ADMIN])")
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT),
		errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("this kernel cannot redirect by nftables: it takes Linux 5.2 with the modules nf_tables, nft_chain_nat and nft_redir: %w", err)
	default:
		return fmt.Errorf("change nftables rules: %w", err)
	}
}
