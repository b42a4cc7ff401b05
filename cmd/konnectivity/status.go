package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
)

// statusOptions are the flags of `konnectivity status`.
type statusOptions struct {
	watch    bool
	interval time.Duration
	output   string
	filter   string
	limit    int
	given    func(flag string) bool // on the command line
}

// usualAdmin is where server and agent have their admin ports by default.
var usualAdmin = []string{"127.0.0.1:8095", "127.0.0.1:8094"}

func newStatus() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [ADDRESS...]",
		Short: "Show what servers, agents and sidecars do right now",
		Long: "Status asks the admin API of each ADDRESS (HOST:PORT of a server's or agent's admin\n" +
			"port or of a sidecar's --admin-address) and shows agents, links, connections with\n" +
			"the stalled ones first, rates, round trips and what failed last. Without an ADDRESS\n" +
			"it asks the usual ports of this machine, " + usualAdmin[0] + " and " + usualAdmin[1] + ".\n\n" +
			"To follow one connection across its hops, give the addresses of all of them and its\n" +
			"id with --filter. The exit status is 1 if an ADDRESS does not answer.",
		Example: "  konnectivity status --watch\n" +
			"  konnectivity status 127.0.0.1:8095 127.0.0.1:8096 --filter 4bf92f3577b34da6\n" +
			"  kubectl port-forward deploy/konnectivity-server 8095   # and in another terminal: konnectivity status 127.0.0.1:8095",
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), cmd.OutOrStdout(), args) },
	}
	cli.AddFlags(cmd, "Status flags", func(f *pflag.FlagSet) {
		f.BoolVarP(&o.watch, "watch", "w", false, "show it again and again in place, until Ctrl-C")
		f.DurationVar(&o.interval, "interval", time.Second, "how often --watch looks; at least 200ms")
		f.StringVarP(&o.output, "output", "o", "table", "table or json")
		f.StringVar(&o.filter, "filter", "", "only connections, peers and failures with this text in an id, host or address")
		f.IntVar(&o.limit, "limit", 10, "most peers, connections and failures to show of each process; at most 1000")
	})
	cli.Choices(cmd, "output", "table", "json")
	o.given = cmd.Flags().Changed
	return cmd
}

func (o *statusOptions) check(addresses []string) error {
	switch {
	case o.output != "table" && o.output != "json":
		return cli.Usagef("--output %q: want table or json", o.output)
	case o.limit < 0 || o.limit > 1000:
		return cli.Usagef("--limit %d: want 0 to 1000", o.limit)
	case o.interval < 200*time.Millisecond:
		return cli.Usagef("--interval %v: want at least 200ms", o.interval)
	}
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return cli.Usagef("%q: want HOST:PORT of an admin port", a)
		}
	}
	return nil
}

func (o *statusOptions) run(ctx context.Context, out io.Writer, addresses []string) error {
	if err := o.check(addresses); err != nil {
		return err
	}
	usual := len(addresses) == 0
	if usual {
		addresses = usualAdmin
	}
	client := newAdminClient()
	defer client.close()
	if o.watch && o.output == "table" {
		fmt.Fprint(out, "\x1b[2J")
	}
	for {
		reports := client.reports(ctx, addresses, o.filter, o.fitting(screenOf(out).rows/len(addresses)))
		if o.watch && ctx.Err() != nil {
			return nil // what a look cut short found missing is not worth a frame
		}
		if usual {
			reports = answered(reports)
		}
		if err := o.print(out, reports); err != nil {
			return err
		}
		if !o.watch {
			return outcome(reports)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.interval):
		}
	}
}

// fitting is the limit for as many rows as there are: where nobody asked for
// another one, all three lists of a process fit into its share of the screen.
func (o *statusOptions) fitting(rows int) int {
	if !o.watch || rows == 0 || o.given("limit") {
		return o.limit
	}
	return min(o.limit, max(minListed, (rows-linesBeside)/3))
}

const (
	linesBeside = 12 // of a report that are no items of a list
	minListed   = 2
)

// answered leaves out those of the usual ports where nothing listens, unless
// that would be all of them.
func answered(reports []report) []report {
	var some []report
	for _, r := range reports {
		if r.Error == "" {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return reports
	}
	return some
}

// errNoAnswer makes the exit status 1; the table has said which.
var errNoAnswer = errors.New("not every process answers")

func outcome(reports []report) error {
	for _, r := range reports {
		if r.Error != "" {
			return errNoAnswer
		}
	}
	return nil
}

func (o *statusOptions) print(out io.Writer, reports []report) error {
	if o.output == "json" {
		enc := json.NewEncoder(out)
		if !o.watch {
			enc.SetIndent("", "  ")
		}
		return enc.Encode(reports)
	}
	var text bytes.Buffer
	room := screenOf(out)
	p := &statusPrinter{out: &text, paint: newPaint(isTerminal(out)), now: time.Now(), columns: room.columns}
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(&text)
		}
		p.report(r)
	}
	if !o.watch {
		_, err := out.Write(text.Bytes())
		return err
	}
	_, err := out.Write(inPlace(text.Bytes(), room.rows))
	return err
}

// inPlace writes over what was there before: from the top, each line up to its
// end, then what is left below, so that nothing flickers; and no more than fits,
// so that nothing scrolls away.
func inPlace(text []byte, rows int) []byte {
	lines := bytes.SplitAfter(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if rows > 0 && len(lines) > rows {
		lines = append(lines[:rows-1], []byte("… more than fits; --limit and --filter show less"))
	}
	out := bytes.ReplaceAll(bytes.Join(lines, nil), []byte("\n"), []byte("\x1b[K\n"))
	return append(append([]byte("\x1b[H"), out...), "\x1b[K\x1b[J"...)
}
