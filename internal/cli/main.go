// Package cli is shared by the main packages: signals, exit statuses, one-line errors,
// checks of flags, and help with grouped flags.
//
// Every program calls Main, which owns the process: signals, memory limit, exit status.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"konnectivity/internal/logging"
	"konnectivity/internal/nameserver"
	"konnectivity/internal/resources"
)

// The exit statuses.
const (
	ExitOK      = 0 // done, or stopped as asked
	ExitFailure = 1 // could not start or go on, or got a second signal to stop
	ExitUsage   = 2 // the command line is wrong
)

// UsageError is an error in the command line: exit status 2.
type UsageError struct{ Err error }

// Error is the sentence.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap is Err.
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError, for flags and arguments that are invalid by themselves.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Main runs a program's command with the process's arguments and returns the
// exit status, for os.Exit. The process keeps to the memory limit of its cgroup,
// unless GOMEMLIMIT says otherwise. The first SIGINT or SIGTERM ends the command's
// context, and Main waits for the command to finish gracefully; the second
// returns at once. A terminal that goes away (SIGHUP) is like the first, unless nohup
// has it ignored; it is often told twice. An error is one line on standard error, or of a
// service of Windows an event; the request to stop such a service is a SIGTERM.
func Main(cmd *cobra.Command) int {
	resources.SetMemoryLimit(os.DirFS("/"), os.Getenv)
	net.DefaultResolver = &net.Resolver{Dial: nameserver.Patience(new(net.Dialer).DialContext)}
	service := func(stderr io.Writer, signals <-chan os.Signal) int { return Run(cmd, os.Args[1:], stderr, signals) }
	if status, ok := asService(service); ok {
		return status
	}
	signals := make(chan os.Signal, 4) // all may arrive before one is read
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	return Run(cmd, os.Args[1:], os.Stderr, signals)
}

// Run is Main with its surroundings as arguments, for tests. If it returns
// because of a second signal, the command's goroutine is still running.
func Run(cmd *cobra.Command, args []string, stderr io.Writer, signals <-chan os.Signal) int {
	prepare(cmd)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		unquote(cmd)
	}
	if ran, err := unknown(cmd, args); err != nil {
		return status(ran, err, false, false, stderr)
	}
	started := false
	onRun(cmd, func() { started = true })
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type outcome struct {
		ran *cobra.Command
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		released := make(chan struct{})
		go func() { defer close(released); resources.ReleaseIdle(ctx) }()
		ran, err := cmd.ExecuteContextC(ctx)
		cancel()
		<-released
		done <- outcome{ran, err}
	}()
	stopping := false
	for {
		select {
		case o := <-done:
			return status(o.ran, o.err, started, stopping, stderr)
		case s := <-signals:
			if stopping && s != syscall.SIGHUP {
				return ExitFailure
			}
			stopping = true
			cancel()
		}
	}
}

// status turns the outcome of cmd, the command or one below it, into an exit
// status, and into a line if it is an error.
func status(cmd *cobra.Command, err error, started, stopping bool, stderr io.Writer) int {
	if err == nil || stopping && errors.Is(err, context.Canceled) {
		return ExitOK
	}
	name := cmd.Root().DisplayName()
	stderr = logging.Patient(stderr)                                    // the process ends even if standard error is not read
	if _, usage := errors.AsType[*UsageError](err); usage || !started { // cobra's own errors precede the run
		text := Printable(strings.Join(strings.Fields(err.Error()), " ")) // cobra's suggestions are indented lines
		path := strings.TrimSuffix(cmd.CommandPath(), " help")            // whose own help says nothing of topics
		fmt.Fprintf(stderr, "%s: %s (see %s --help)\n", name, text, path)
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %s\n", name, Printable(strings.TrimSpace(strings.ReplaceAll(err.Error(), "\n", " "))))
	return ExitFailure
}

// Around runs front, and beside it, until it has ended, background and parts: connections need
// these while they drain. The context of front ends with ctx, or when a part fails. The error is
// that of a part, or else of front.
func Around(ctx context.Context, front func(context.Context) error, background []func(context.Context), parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	running, broken := errgroup.WithContext(behind)
	context.AfterFunc(broken, cancel)
	for _, run := range background {
		running.Go(func() error { run(behind); return nil })
	}
	for _, part := range parts {
		running.Go(func() error { return part(behind) })
	}
	err := front(ctx)
	stop()
	return cmp.Or(running.Wait(), err)
}

// onRun makes every command call f before its run function.
func onRun(cmd *cobra.Command, f func()) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error { f(); return run(c, args) }
	} else if run := cmd.Run; run != nil {
		cmd.Run = func(c *cobra.Command, args []string) { f(); run(c, args) }
	}
	for _, sub := range cmd.Commands() {
		onRun(sub, f)
	}
}

// unknown returns a command that only has others below it, and an error, if args name none of
// them. cobra would show help, and succeed: a script would take a check for done.
func unknown(root *cobra.Command, args []string) (*cobra.Command, error) {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.Runnable() {
		return nil, nil
	}
	cmd.InitDefaultHelpFlag()
	if cmd.ParseFlags(rest) != nil { // cobra says why
		return nil, nil
	}
	if help, _ := cmd.Flags().GetBool("help"); help || cmd.Flags().NArg() == 0 {
		return nil, nil
	}
	name := cmd.Flags().Arg(0)
	return cmd, Usagef("unknown command %q for %q%s", name, cmd.CommandPath(), similar(cmd, name))
}

// NoArgs accepts no argument. cobra's own function would call one an unknown
// command.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("no arguments are accepted, got %q", args)
	}
	return nil
}

// OneArg accepts exactly one argument; the error calls it by its name in the
// command's usage.
func OneArg(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("want one argument, %s, and got %d", name, len(args))
		}
		return nil
	}
}
