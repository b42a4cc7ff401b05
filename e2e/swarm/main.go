// Command swarm makes many clusters, each with an agent and a sidecar's link to
// one server that they share, and measures what that server costs: its memory
// for each, its processor time when nothing happens, how soon all are back after
// it was killed, and how long a look at it takes. The server is the built
// program; the links are real ones, by mTLS with a CA of each cluster's own, and
// all are held by this one process. `make bench-tenants` runs it. With -noise it
// measures what one cluster leaves to another beside it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"konnectivity/e2e/suite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	do := run
	if len(os.Args) == 2 && os.Args[1] == crowdArg {
		do = func(ctx context.Context) error { return beCrowd(ctx, os.Stdin, os.Stdout) }
	}
	if err := do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "swarm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := options{settle: settleTime, say: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	flag.IntVar(&o.tenants, "tenants", 1000, "number of clusters")
	flag.IntVar(&o.connections, "connections", 0, "connections to open and to hold, over all of them")
	flag.IntVar(&o.rate, "rate", 0, "new connections a second, for as long as -for says; 0: none")
	flag.DurationVar(&o.period, "for", 20*time.Second, "how long the server is watched, and connections are made")
	flag.DurationVar(&o.changeFor, "churn", 0, "how long tenants are added, changed and removed at random, while a connection of each carries bytes that are checked; 0: not at all")
	flag.StringVar(&o.profiles, "profiles", "", "directory to write the server's profiles to, of heap, goroutines and, while idle, processor time; empty: none")
	flag.BoolVar(&o.restart, "restart", true, "kill the server and see how soon all are back")
	noise := flag.Bool("noise", false, "measure instead what a cluster that makes noise leaves to a quiet one; the peers of each are a process")
	flag.Parse()
	if o.tenants < 1 || o.connections < 0 || o.rate < 0 || o.period <= 0 || o.changeFor < 0 {
		return fmt.Errorf("-tenants and -for must be positive, -connections, -rate and -churn not negative")
	}
	dir, err := os.MkdirTemp("", "ks")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := suite.Build(".", dir)
	if err != nil {
		return err
	}
	s, err := suite.New(bin, dir)
	if err != nil {
		return err
	}
	defer s.Close()
	measure, what := o.measure, fmt.Sprintf("%d tenants, %d connections held, %d new ones a second", o.tenants, o.connections, o.rate)
	if *noise {
		measure, what = o.noise, "a quiet cluster beside one that makes noise"
	}
	figures, err := measure(ctx, s)
	if err != nil {
		return err
	}
	fmt.Printf("| %s | |\n|---|---|\n", what)
	for _, f := range figures {
		fmt.Printf("| %s | %s |\n", f.what, f.value)
	}
	return nil
}
