package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/bench"
	"konnectivity/internal/cli"
)

// benchOptions are the flags of `konnectivity bench`.
type benchOptions struct {
	tls      via.TLS
	vias     []string
	pids     []string
	target   string
	json, md bool
	plan     bench.Plan
	sizeMiB  int64
}

func newBench() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a path through the tunnel against a baseline",
		Long: "Bench drives one or more paths to a target in turn, and prints medians and ratios:\n" +
			"throughput, round trips, connections per second, and with --pids CPU and memory of the\n" +
			"processes on them. The last --via is the baseline of the ratios. A PATH is\n" + via.Kinds + ".\n" +
			"The target is a konnectivity bench target that the far end can reach; without --target\n" +
			"one is started here, for setups on one machine.",
		Example: "  konnectivity bench --via socks5://127.0.0.1:8090 --via direct\n" +
			"  konnectivity bench --via ours=socks5://127.0.0.1:8090 --pids ours=101,102,103 --via direct --tests down,churn --runs 5",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.AddFlags(cmd, "Benchmark flags", o.addTo)
	addPathTLS(cmd, &o.tls)
	cmd.AddCommand(newBenchTarget())
	return cmd
}

func (o *benchOptions) addTo(f *pflag.FlagSet) {
	f.StringArrayVar(&o.vias, "via", []string{"direct"}, "a path to measure, `[NAME=]PATH`; repeatable")
	f.StringArrayVar(&o.pids, "pids", nil, "processes that carry a path, `NAME=PID,PID`; repeatable")
	f.StringVar(&o.target, "target", "", "HOST:PORT of a running bench target, as the far end sees it")
	f.StringSliceVar(&o.plan.Tests, "tests", []string{"down", "up", "rtt", "churn"}, "what to measure: "+strings.Join(bench.TestNames(), ","))
	f.IntVar(&o.plan.Runs, "runs", 3, "rounds; paths take turns within each")
	f.IntSliceVar(&o.plan.Streams, "streams", []int{1, 8}, "connections of a bulk transfer")
	f.Int64Var(&o.sizeMiB, "size", 1024, "MiB of a bulk transfer, over all its connections")
	f.DurationVar(&o.plan.Duration, "duration", 3*time.Second, "length of each round-trip and connection test")
	f.IntVar(&o.plan.Dialers, "dialers", 16, "dialers at once")
	f.IntVar(&o.plan.Idle, "idle", 1000, "connections held by the test idle")
	f.IntVar(&o.plan.Rate, "rate", 0, "new connections per second of the test idle; 0 means as fast as possible")
	f.IntVar(&o.plan.Stalled, "stalled", 100, "readers that never read, of the test stalled")
	f.DurationVar(&o.plan.Settle, "settle", time.Second, "how long processes rest before their memory is read; the suite's own return memory after 15 s at rest")
	f.BoolVar(&o.json, "json", false, "print every value of every round as JSON")
	f.BoolVar(&o.md, "markdown", false, "print the table as Markdown")
}

// maxBenchMiB is a tebibyte, which takes minutes on any path.
const maxBenchMiB = 1 << 20

func (o *benchOptions) run(ctx context.Context, out, progress io.Writer) (err error) {
	if o.plan.Runs < 1 || o.sizeMiB < 1 || len(o.plan.Streams) == 0 || o.plan.Dialers < 1 || o.plan.Idle < 1 || o.plan.Stalled < 1 {
		return cli.Usagef("--runs, --size, --streams, --dialers, --idle and --stalled must be at least 1")
	}
	if o.sizeMiB > maxBenchMiB {
		return cli.Usagef("--size %d: want %d at most", o.sizeMiB, maxBenchMiB)
	}
	if o.plan.Duration <= 0 || o.plan.Rate < 0 || o.plan.Settle < 0 {
		return cli.Usagef("--duration must be positive, and --rate and --settle not negative")
	}
	if err := bench.CheckTests(o.plan.Tests); err != nil {
		return cli.Usagef("--tests=%s: %w", strings.Join(o.plan.Tests, ","), err)
	}
	for _, n := range o.plan.Streams {
		if n < 1 {
			return cli.Usagef("--streams %d: must be at least 1", n)
		}
	}
	o.plan.Size = o.sizeMiB << 20
	target := o.target
	if target == "" {
		var stop func() error
		if target, stop, err = bench.StartTarget(ctx); err != nil {
			return err
		}
		defer func() { err = cmp.Or(stop(), err) }() // tests without their target fail in other words
	}
	subjects, closeAll, err := o.subjects(target)
	defer closeAll()
	if err != nil {
		return err
	}
	rep, err := bench.Run(ctx, o.plan, subjects, func(what string) { fmt.Fprintln(progress, what) })
	if err != nil {
		return err
	}
	if o.json {
		return cli.PrintJSON(out, rep)
	}
	return rep.Table(out, o.md)
}

func (o *benchOptions) subjects(target string) (_ []bench.Subject, closeAll func(), _ error) {
	var closers []func()
	closeAll = func() {
		for _, f := range closers {
			f()
		}
	}
	pids, err := parsePIDs(o.pids)
	if err != nil {
		return nil, closeAll, err
	}
	var subjects []bench.Subject
	for _, flag := range o.vias {
		name, way, named := strings.Cut(flag, "=")
		if !named {
			name, way = flag, flag
		}
		secure := o.tls
		secure.Plain = true // one that waited would count as slow
		dialer, closer, err := via.Dialer(way, secure)
		if err != nil {
			return nil, closeAll, err
		}
		closers = append(closers, closer)
		subjects = append(subjects, bench.Subject{Path: bench.Path{Name: name, Dialer: dialer, Target: target}, PIDs: pids[name]})
		delete(pids, name)
	}
	for name := range pids {
		return nil, closeAll, cli.Usagef("--pids %s=...: no --via has that name", name)
	}
	return subjects, closeAll, nil
}

func parsePIDs(flags []string) (map[string][]int, error) {
	pids := map[string][]int{}
	for _, flag := range flags {
		name, list, ok := strings.Cut(flag, "=")
		if !ok {
			return nil, cli.Usagef("--pids %q: want NAME=PID,PID", flag)
		}
		for text := range strings.SplitSeq(list, ",") {
			pid, err := strconv.Atoi(text)
			if err != nil || pid < 1 {
				return nil, cli.Usagef("--pids %q: %q is not a process id", flag, text)
			}
			pids[name] = append(pids[name], pid)
		}
	}
	return pids, nil
}

func newBenchTarget() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Serve what bench measures against, until interrupted",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), l.Addr())
			return bench.ServeTarget(cmd.Context(), l)
		},
	}
	cli.AddFlags(cmd, "Target flags", func(f *pflag.FlagSet) {
		f.StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; it is printed")
	})
	return cmd
}
