// Command bench measures the built programs.
//
//	bench           end to end, beside the plain relay chain (make bench-e2e)
//	bench line      over lines that are far, narrow or lossy (make bench-line)
//	bench noise     a quiet cluster on a server beside one that makes noise (make bench-noise)
//	bench scale     thousands of tenants, agents, sidecars and connections (make scale)
//
// The first two write their tables into docs/performance.md, the last one into
// docs/scale.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 {
		command := map[string]func(context.Context, []string) error{
			"line": benchLine, "noise": benchNoise, "scale": benchScale,
			hopCommand: benchHop, loadCommand: benchLoad, // child processes
		}[os.Args[1]]
		if command != nil {
			return command(ctx, os.Args[2:])
		}
	}
	return benchChain(ctx)
}

type options struct {
	plan                          bench.Plan
	sizeMiB                       int64
	speed, memory, profile, write string
	beside                        string
	long                          bool
}

// benchChain is `bench` without a command: ours and the relay chain in turn.
func benchChain(ctx context.Context) error {
	var o options
	flag.IntVar(&o.plan.Runs, "runs", 5, "rounds, ours and the relay chain in turn")
	flag.Int64Var(&o.sizeMiB, "size", 1024, "MiB of a bulk transfer")
	flag.DurationVar(&o.plan.Duration, "duration", 3*time.Second, "length of each latency and connection test")
	flag.IntVar(&o.plan.Idle, "idle", 1000, "idle connections")
	flag.DurationVar(&o.plan.Settle, "settle", 12*time.Second, "how long processes get to come to rest before memory is read")
	flag.StringVar(&o.speed, "speed", "down,up,rtt,small,churn", "tests of speed; empty: none")
	flag.StringVar(&o.memory, "memory", "idle,stalled", "tests of memory, each on processes that are fresh; empty: none")
	flag.BoolVar(&o.long, "long", true, "measure with an agent that is 50 ms away, too")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles of server and agent, taken while the tests of speed run")
	flag.StringVar(&o.beside, "beside", "", "flags of a second suite of the same programs, which takes the relay chain's place: -beside=--resume-window=0")
	flag.StringVar(&o.write, "write", "", "Markdown file whose table between the marks is replaced")
	flag.Parse()
	o.plan.Size, o.plan.Streams, o.plan.Dialers, o.plan.Stalled = o.sizeMiB<<20, []int{1, 8}, 16, 100
	return withPrograms(func(bin suite.Binaries, _ string) error { return o.run(ctx, bin) })
}

// withPrograms calls do with programs that were just built, and a folder for what else is
// temporary.
func withPrograms(do func(bin suite.Binaries, dir string) error) error {
	dir, err := os.MkdirTemp("", "kb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := suite.Build(".", dir)
	if err != nil {
		return err
	}
	return do(bin, dir)
}

// withSuite is withPrograms for those of a suite.
func withSuite(do func(*suite.Suite) error) error {
	return withPrograms(func(bin suite.Binaries, dir string) error {
		s, err := suite.New(bin, dir)
		if err != nil {
			return err
		}
		defer s.Close()
		return do(s)
	})
}

// say tells of progress.
func say(line string) { fmt.Fprintln(os.Stderr, line) }

func (o options) run(ctx context.Context, bin suite.Binaries) error {
	rep := new(bench.Report)
	if o.speed != "" {
		plan := o.plan
		plan.Tests = strings.Split(o.speed, ",")
		if err := o.onFresh(ctx, bin, plan, rep); err != nil {
			return err
		}
	}
	if o.long {
		if err := o.measureLong(ctx, bin, rep); err != nil {
			return err
		}
	}
	if o.memory != "" {
		if err := o.measureMemory(ctx, bin, rep); err != nil {
			return err
		}
	}
	return publish(rep, o.write, "bench-e2e")
}

// measureMemory starts new processes for every round of every test, since
// memory that an earlier one left behind would hide what the next one takes.
func (o options) measureMemory(ctx context.Context, bin suite.Binaries, rep *bench.Report) error {
	for range o.plan.Runs {
		for test := range strings.SplitSeq(o.memory, ",") {
			plan := o.plan
			plan.Tests, plan.Runs = []string{test}, 1
			if err := o.onFresh(ctx, bin, plan, rep); err != nil {
				return err
			}
		}
	}
	return nil
}

// onFresh carries out a plan on processes of its own.
func (o options) onFresh(ctx context.Context, bin suite.Binaries, plan bench.Plan, rep *bench.Report) error {
	w, err := start(bin)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.residents(rep); err != nil {
		return err
	}
	profiled := o.profile != "" && plan.Runs == o.plan.Runs
	if profiled {
		go w.profile(o.profile, "")
	}
	target, stop, err := bench.StartTarget(ctx)
	if err != nil {
		return err
	}
	defer stop()
	subjects := w.subjects(target)
	if o.beside != "" {
		other, err := start(bin, strings.Fields(o.beside)...)
		if err != nil {
			return err
		}
		defer other.close()
		subjects[1] = other.subject(o.beside, target)
		if profiled {
			go other.profile(o.profile, "-beside")
		}
	}
	got, err := bench.Run(ctx, plan, subjects, say)
	rep.Merge(got)
	return err
}

// publish prints the table of a report, and puts it between the marks of a name in a Markdown
// file, if one is given.
func publish(rep *bench.Report, file, name string) error {
	var table strings.Builder
	if err := rep.Table(&table, true); err != nil {
		return err
	}
	fmt.Print(table.String())
	if file == "" || table.Len() == 0 {
		return nil
	}
	return replaceTable(file, name, table.String())
}

// replaceTable puts table between the marks of a name in a Markdown file.
func replaceTable(file, name, table string) error {
	beginMark, endMark := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks %q and %q to write between", file, strings.TrimSpace(beginMark), endMark)
	}
	return os.WriteFile(file, []byte(before+beginMark+table+endMark+after), 0o644)
}
