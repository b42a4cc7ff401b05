package registry

import (
	"fmt"
	"slices"
	"strings"
)

// Strategy is a way to find agents for a destination. The text is the one of
// upstream's --proxy-strategies (pkg/server/proxystrategies).
type Strategy string

// The strategies. DestCIDR is named in upstream's help and exists nowhere in
// its code; ours has it.
const (
	DestHost     Strategy = "destHost"     // agents whose ipv4, ipv6 or host identifier is the destination
	DestCIDR     Strategy = "destCIDR"     // agents with the longest cidr identifier the destination is in
	DefaultRoute Strategy = "defaultRoute" // agents with default-route=true
	Default      Strategy = "default"      // any agent
)

var strategies = []Strategy{Default, DestHost, DestCIDR, DefaultRoute}

// ParseStrategies reads a comma-separated list. Empty items are skipped, as
// upstream does; a repeated strategy counts once.
func ParseStrategies(list string) ([]Strategy, error) {
	var out []Strategy
	for item := range strings.SplitSeq(list, ",") {
		s := Strategy(strings.TrimSpace(item))
		if s == "" || slices.Contains(out, s) {
			continue
		}
		if !slices.Contains(strategies, s) {
			return nil, fmt.Errorf("unknown proxy strategy %q: want default, destHost, destCIDR or defaultRoute", string(s))
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the list of proxy strategies is empty: want default, destHost, destCIDR or defaultRoute")
	}
	return out, nil
}
