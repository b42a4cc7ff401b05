package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// BenchmarkAuditLog compares connections a second with audit logs in sidecar, server and
// agent, and without, by 1,000 rules. Both are measured in turn in each round. It reports the
// medians of the rounds' ratios, of connections a second and of processor time for each.
func BenchmarkAuditLog(b *testing.B) {
	var rules strings.Builder
	for i := range 999 {
		fmt.Fprintf(&rules, "- {name: r%d, action: deny, who: ['*'], where: ['10.%d.%d.0/24', '*.n%d.example']}\n", i, i/250, i%250, i)
	}
	rules.WriteString("- {name: loopback, action: allow, who: ['*'], where: ['127.0.0.0/8']}\n")
	target := testutil.Echo(b)
	type world struct {
		procs []*suite.Process
		by    tunnel.Dialer
	}
	start := func(audited bool) world {
		s := suite.ForTest(b, binaries)
		policy := filepath.Join(s.Dir, "policy.yaml")
		writePolicy(b, policy, "rules:\n"+rules.String())
		var log []string
		if audited {
			log = []string{"--audit-log=" + filepath.Join(s.Dir, "audit.jsonl")}
		}
		srv := must(s.StartServer(append(log, "--policy-file="+policy)...))(b)
		agent := must(s.StartAgent(srv, append(log, "--policy-file="+policy)...))(b)
		socks := must(s.StartSOCKS5(srv, log...))(b)
		return world{[]*suite.Process{srv.Process, agent.Process, socks.Process}, viaSOCKS5(socks.Address())}
	}
	worlds := [2]world{start(false), start(true)}
	measure := func(w world, long time.Duration) (perSecond, cost float64) {
		spent := func() (sum time.Duration) {
			for _, p := range w.procs {
				ran, _, err := p.Processor()
				testutil.NoError(b, err)
				sum += ran
			}
			return sum
		}
		var done atomic.Int64
		var working sync.WaitGroup
		before, began := spent(), time.Now()
		for range 8 {
			working.Go(func() {
				for time.Since(began) < long {
					if got := echoOnce(w.by, target); got.err != nil {
						b.Error(got.err)
						return
					}
					done.Add(1)
				}
			})
		}
		working.Wait()
		n := float64(done.Load())
		return n / time.Since(began).Seconds(), (spent() - before).Seconds() / n
	}
	for _, w := range worlds {
		measure(w, 2*time.Second)
	}
	var rates, costs []float64
	for i := 0; b.Loop(); i++ {
		var rate, cost [2]float64
		for j := range worlds {
			k := (i + j) % 2
			rate[k], cost[k] = measure(worlds[k], 2*time.Second)
		}
		rates, costs = append(rates, rate[1]/rate[0]), append(costs, cost[1]/cost[0])
		b.Logf("%.0f and %.0f connections/s, %.1f and %.1f us of a core each", rate[0], rate[1], cost[0]*1e6, cost[1]*1e6)
	}
	for unit, ratios := range map[string][]float64{"rate-ratio": rates, "cpu-ratio": costs} {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], unit)
	}
}
