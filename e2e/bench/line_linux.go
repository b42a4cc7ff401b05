package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"konnectivity/e2e/line"
	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/wait"
)

// endTime is how long the process of a cell gets to end its programs.
const endTime = 10 * time.Second

// lines says which lines to measure, and how.
type lines struct {
	args     []string // of the command line
	cells    []cell
	only     int // of cells, in its process; -1: this process starts one for each
	runs     int
	least    time.Duration  // of each test
	ahead    time.Duration  // how long downloads have run when round trips beside them begin
	before   suite.Binaries // another build of the programs; "" is none
	others   []other        // tunnels
	leg      string         // where the line is
	lanes    int            // also measure ours with so many lanes; 0 is not
	tests    []string       // of cellTests, in order; one that is named twice is run twice
	subjects []string       // the names of paths to measure
	write    string
}

// cell is one line of the table.
type cell struct {
	Mbps int
	RTT  time.Duration
	Loss float64       // percent
	cut  time.Duration // measure a cut of the line, and nothing else; 0 is none
}

func (c cell) String() string { return fmt.Sprintf("%d Mbit/s, %v, %g %%", c.Mbps, c.RTT, c.Loss) }

func (c cell) config(seed int) line.Config {
	return line.Config{Delay: c.RTT / 2, Rate: float64(c.Mbps) * 1e6, Loss: c.Loss / 100, Seed: uint64(seed)}
}

// benchLine measures every cell in turn, round by round. A process of its own
// measures each at one end of the line, while this process carries the packets.
func benchLine(ctx context.Context, args []string) error {
	ls, err := parseLines(args)
	if err != nil {
		return err
	}
	if err := line.Possible(); err != nil {
		return err
	}
	return withPrograms(func(bin suite.Binaries, _ string) error {
		if ls.only >= 0 {
			return ls.benchCell(ctx, bin)
		}
		rep, failed := ls.rounds(ctx, bin)
		return errors.Join(failed, publish(rep, ls.write, "bench-line"))
	})
}

// rounds measures all cells in all rounds, or until ctx ends. A cell that fails is left
// out of its round; err says why.
func (ls *lines) rounds(ctx context.Context, bin suite.Binaries) (rep *bench.Report, err error) {
	rep = new(bench.Report)
	for round := range ls.runs {
		for i, c := range ls.cells {
			if ctx.Err() != nil {
				return rep, errors.Join(err, context.Cause(ctx))
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %v\n", round+1, ls.runs, c)
			got, failed := ls.measure(ctx, bin, i, round)
			if failed != nil {
				failed = fmt.Errorf("round %d, %v: %w", round+1, c, failed)
				fmt.Fprintln(os.Stderr, failed)
				err = errors.Join(err, failed)
				continue
			}
			rep.Merge(got)
		}
	}
	return rep, err
}

// lengthRTTs is how many round trips a test lasts beyond its length, so that it covers
// more of a far line than the beginning.
const lengthRTTs = 40

// length is that of each test of a cell.
func (m *measurement) length() time.Duration { return m.least + lengthRTTs*m.RTT }

// limit bounds the time of a cell: only transfers of 10 MB may take longer than a test's length.
func (ls *lines) limit(c cell) time.Duration {
	return 5*time.Minute + 30*(ls.least+ls.ahead+lengthRTTs*c.RTT) + c.cut
}

// ownSubjects are all paths without -other.
const ownSubjects = "ours,ours with -lanes,before,relay chain,raw TLS"

func parseLines(args []string) (*lines, error) {
	ls := &lines{args: args}
	set := flag.NewFlagSet("bench line", flag.ExitOnError)
	rates := set.String("rate", "50,200,1000", "rates, Mbit/s")
	delays := set.String("rtt", "10ms,50ms,150ms", "round trips")
	losses := set.String("loss", "0,0.1,1", "losses each way, percent")
	set.DurationVar(&ls.least, "length", 3*time.Second, "length of each transfer and each test of round trips, to which forty round trips of the line are added")
	tests := set.String("tests", strings.Join(cellTestNames(), ","), "what to measure, in order; empty: nothing but the cut")
	subjects := set.String("subjects", ownSubjects, "what to measure it with; the -other ones are added")
	set.StringVar((*string)(&ls.before), "before", "", "folder of another build of the programs, to be measured in turn with this one")
	dirs := set.String("other", "", "folders of other tunnels, to be measured too: each has the programs near and far, and the file via (docs/performance.md)")
	set.DurationVar(&ls.ahead, "ahead", 0, "how long downloads run before round trips beside them are measured")
	set.StringVar(&ls.leg, "leg", legAgent, "where the line is: between server and "+legAgent+", or "+legSidecar+" and server")
	set.IntVar(&ls.lanes, "lanes", 0, "also measure ours with at most so many lanes (--link-lanes) on that leg; 0: do not")
	cut := set.Duration("cut", 30*time.Second, "how long a line is cut, after the table and in every round; 0: not at all")
	set.IntVar(&ls.runs, "runs", 3, "rounds")
	set.IntVar(&ls.only, "cell", -1, "which cell to measure, in the process that is started for it")
	set.StringVar(&ls.write, "write", "", "Markdown file whose table between the marks is replaced")
	_ = set.Parse(args) // which ends the process itself
	if set.NArg() > 0 {
		return nil, fmt.Errorf("bench line: %q is no flag: flags begin with -", set.Arg(0))
	}
	var err error
	if ls.others, err = readOthers(strings.FieldsFunc(*dirs, isComma)); err != nil {
		return nil, err
	}
	ls.subjects, ls.tests = strings.Split(*subjects, ","), strings.FieldsFunc(*tests, isComma)
	if err := cmp.Or(bench.CheckNames("subject", ls.subjects, strings.Split(ownSubjects, ",")), bench.CheckNames("test", ls.tests, cellTestNames())); err != nil {
		return nil, err
	}
	for _, o := range ls.others {
		ls.subjects = append(ls.subjects, o.name)
	}
	if len(ls.tests) > 0 {
		if ls.cells, err = cells(*rates, *delays, *losses); err != nil {
			return nil, err
		}
	}
	if *cut > 0 {
		ls.cells = append(ls.cells, cell{Mbps: 50, RTT: 50 * time.Millisecond, cut: *cut})
	}
	return ls, nil
}

func isComma(r rune) bool { return r == ',' }

// cells returns a cell for every rate with every delay and every loss.
func cells(rates, delays, losses string) (all []cell, err error) {
	for r := range strings.SplitSeq(rates, ",") {
		for d := range strings.SplitSeq(delays, ",") {
			for l := range strings.SplitSeq(losses, ",") {
				var c cell
				if c.Mbps, err = strconv.Atoi(r); err != nil {
					return nil, fmt.Errorf("-rate: %w", err)
				}
				if c.RTT, err = time.ParseDuration(d); err != nil {
					return nil, fmt.Errorf("-rtt: %w", err)
				}
				if c.Loss, err = strconv.ParseFloat(l, 64); err != nil {
					return nil, fmt.Errorf("-loss: %w", err)
				}
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// measure makes the line of the i-th cell, and starts the process that measures it.
func (ls *lines) measure(ctx context.Context, bin suite.Binaries, i, seed int) (*bench.Report, error) {
	c := ls.cells[i]
	limit := ls.limit(c)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	l, err := line.New(c.config(seed))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	requests, asks, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer requests.Close()
	defer asks.Close()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, self, append([]string{"line", fmt.Sprint("-cell=", i)}, ls.args...)...)
	cmd.Env = append(os.Environ(), suite.ProgramsEnv+"="+string(bin))
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends its programs
	cmd.WaitDelay = endTime
	cmd.ExtraFiles = []*os.File{l.B.File(), asks} // farFile and cutFile
	p, err := suite.StartOn("the process of a cell", cmd, l.A.Do)
	if err != nil {
		return nil, err
	}
	_ = asks.Close()
	if n, _ := requests.Read(make([]byte, 1)); n > 0 { // else it has ended, and asked for no cut
		l.SetCut(true)
		wait.For(ctx, c.cut)
		l.SetCut(false)
	}
	status, err := p.Wait(limit + 2*endTime)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s ended with status %d", p.Name, status)
	}
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	rep := new(bench.Report)
	return rep, json.Unmarshal(out.Bytes(), rep)
}
