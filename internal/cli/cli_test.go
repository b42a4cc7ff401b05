package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
	"konnectivity/internal/version"
)

// program is a command with flags of two groups that runs run.
func program(run func(ctx context.Context) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: "prog", Short: "A program", Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
	}
	cli.AddFlags(cmd, "Listening flags", func(f *pflag.FlagSet) {
		f.Int("server-port", 8090, "port for clients")
		f.String("admin-address", "127.0.0.1", "address of the admin port")
	})
	cli.AddFlags(cmd, "Certificate flags", func(f *pflag.FlagSet) { f.String("ca-cert", "", "file of CAs") })
	cli.AddFlags(cmd, "Listening flags", func(f *pflag.FlagSet) { f.Duration("grace", 0, "time to finish") })
	return cmd
}

func nothing(context.Context) error { return nil }

// execute runs a command and returns its status and what it wrote.
func execute(cmd *cobra.Command, signals chan os.Signal, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	cmd.SetOut(&out)
	status = cli.Run(cmd, args, &err, signals)
	return status, out.String(), err.String()
}

// A program that fails exits though nobody reads its standard error.
func TestAFailureEndsWithoutAReader(t *testing.T) {
	fail := func(context.Context) error { return errors.New("no port") }
	for want, args := range map[int][]string{cli.ExitFailure: nil, cli.ExitUsage: {"--nonsense"}} {
		synctest.Test(t, func(t *testing.T) {
			reader, stderr := io.Pipe()
			defer reader.Close() // which ends the write
			testutil.Equal(t, cli.Run(program(fail), args, stderr, nil), want, "status")
		})
	}
}

func TestExitStatusAndOneLine(t *testing.T) {
	boom := errors.New("listen on 127.0.0.1:1: permission denied")
	for _, c := range []struct {
		name   string
		run    func(context.Context) error
		args   []string
		status int
		line   string
	}{
		{"success", nothing, nil, 0, ""},
		{"failure", func(context.Context) error { return boom }, nil, 1, "prog: listen on 127.0.0.1:1: permission denied\n"},
		{"several lines", func(context.Context) error { return errors.Join(boom, errors.New("more")) }, nil, 1,
			"prog: listen on 127.0.0.1:1: permission denied more\n"},
		{"contradiction", func(context.Context) error { return cli.Usagef("--a and --b exclude each other") }, nil, 2,
			"prog: --a and --b exclude each other (see prog --help)\n"},
		{"unknown flag", nothing, []string{"--nope"}, 2, "prog: unknown flag: --nope (see prog --help)\n"},
		{"bad value", nothing, []string{"--server-port=x"}, 2, ""},
		{"stray argument", nothing, []string{"stray"}, 2, "prog: no arguments are accepted, got [\"stray\"] (see prog --help)\n"},
		{"own cancellation", func(context.Context) error { return context.Canceled }, nil, 1, "prog: context canceled\n"},
	} {
		status, _, stderr := execute(program(c.run), nil, c.args...)
		testutil.Holds(t, status == c.status && (c.line == "" || stderr == c.line) && strings.Count(stderr, "\n") <= 1,
			"%s: status %d, %q; want %d, %q", c.name, status, stderr, c.status, c.line)
	}
}

func TestFirstSignalStopsGracefully(t *testing.T) {
	for _, result := range []error{nil, context.Canceled} {
		signals := make(chan os.Signal, 2)
		finished := false
		status, _, stderr := execute(program(func(ctx context.Context) error {
			signals <- syscall.SIGTERM
			<-ctx.Done()
			finished = true
			return result
		}), signals)
		testutil.Holds(t, status == 0 && stderr == "" && finished, "status %d, %q, finished %v", status, stderr, finished)
	}
	signals := make(chan os.Signal, 2)
	if status, _, _ := execute(program(func(ctx context.Context) error {
		signals <- syscall.SIGTERM
		<-ctx.Done()
		return errors.New("could not drain")
	}), signals); status != 1 {
		t.Errorf("a failed shutdown has status %d", status)
	}
}

// A closed terminal causes two SIGHUPs, of the kernel and of the shell.
func TestSIGHUPIsGraceful(t *testing.T) {
	signals := make(chan os.Signal, 2)
	status, _, stderr := execute(program(func(ctx context.Context) error {
		signals <- syscall.SIGHUP
		<-ctx.Done()
		signals <- syscall.SIGHUP
		for len(signals) > 0 {
			runtime.Gosched()
		}
		return nil
	}), signals)
	testutil.Holds(t, status == 0 && stderr == "", "status %d, %q", status, stderr)
}

func TestSecondSignalExitsNow(t *testing.T) {
	signals := make(chan os.Signal, 2)
	stuck, joined := make(chan struct{}), make(chan struct{})
	status, _, _ := execute(program(func(context.Context) error {
		defer close(joined)
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM
		<-stuck // deaf to its context
		return nil
	}), signals)
	testutil.Equal(t, status, 1, "status")
	close(stuck)
	<-joined
}

func TestUnderscoresAreDashes(t *testing.T) {
	cmd := program(nothing)
	status, _, stderr := execute(cmd, nil, "--server_port=1", "--ca_cert", "f")
	testutil.Requires(t, status == 0, "%v", stderr)
	testutil.Equal(t, testutil.Must(cmd.Flags().GetInt("server-port"))(t), 1, "--server_port")
}

func TestHelpIsGroupedWithDefaults(t *testing.T) {
	status, stdout, stderr := execute(program(nothing), nil, "--help")
	testutil.Requires(t, status == 0 && stderr == "", "status %d, %q", status, stderr)
	rest := stdout
	for _, part := range []string{
		"A program", "Usage:", "prog [flags]",
		"Listening flags:", "--server-port int", "(default 8090)", "--admin-address string", "--grace duration",
		"Certificate flags:", "--ca-cert string", "Other flags:", "--help", "--version",
	} {
		_, after, found := strings.Cut(rest, part)
		testutil.Holds(t, found, "%q is missing or out of order in:\n%s", part, stdout)
		rest = after
	}
}

func TestVersionAndCompletion(t *testing.T) {
	if status, stdout, _ := execute(program(nothing), nil, "--version"); status != 0 || !strings.HasPrefix(stdout, "prog ") || !strings.Contains(stdout, "go1") {
		t.Errorf("--version: %d %q", status, stdout)
	}
	_, flag, _ := execute(program(nothing), nil, "--version")
	status, command, _ := execute(program(nothing), nil, "version")
	testutil.Holds(t, status == 0 && command == flag, "version: %d %q, and --version: %q", status, command, flag)
	var build version.Info
	status, text, _ := execute(program(nothing), nil, "version", "-o", "json")
	err := json.Unmarshal([]byte(text), &build)
	testutil.Holds(t, err == nil && status == 0 && build == version.Get(), "version -o json: %d %v %q", status, err, text)
	if status, _, stderr := execute(program(nothing), nil, "version", "-o", "yaml"); status != 2 || !strings.Contains(stderr, "must be one of text, json") {
		t.Errorf("version -o yaml: %d %q", status, stderr)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, stdout, stderr := execute(program(nothing), nil, "completion", shell)
		testutil.Holds(t, status == 0 && strings.Contains(stdout, "prog"), "completion %s: %d %q", shell, status, stderr)
	}
	status, _, _ = execute(program(nothing), nil, "completion", "tcsh")
	testutil.Holds(t, status == 2, "an unknown shell has status %d", status)
	status, stdout, _ := execute(program(nothing), nil, "__complete", "--ser")
	testutil.Holds(t, status == 0 && strings.Contains(stdout, "--server-port"), "completing --ser: %q", stdout)
}

// Backticks are for help alone, and values are completed, too.
func TestCompletionOfValues(t *testing.T) {
	with := func() *cobra.Command {
		root := &cobra.Command{Use: "prog"}
		sub := &cobra.Command{Use: "sub", RunE: func(*cobra.Command, []string) error { return nil }}
		cli.AddFlags(sub, "Flags", func(f *pflag.FlagSet) {
			f.String("via", "", "the `WAY` to go")
			cli.Output(f, new(bool), "table")
		})
		cli.Choices(sub, "via", "direct", "socks5://")
		root.AddCommand(sub)
		return root
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"__complete", "sub", "--v"}, "--via\tthe WAY to go\n:4\n"},
		{[]string{"__complete", "sub", "--via", "s"}, "direct\nsocks5://\n:6\n"},
		{[]string{"__complete", "sub", "--output", ""}, "table\njson\n:4\n"},
	} {
		status, stdout, stderr := execute(with(), nil, c.args...)
		testutil.Holds(t, status == 0 && strings.HasPrefix(stdout, c.want), "%q: %d %q %s, want %q", c.args, status, stdout, stderr, c.want)
	}
	_, stdout, _ := execute(with(), nil, "sub", "--help")
	testutil.Holds(t, strings.Contains(stdout, "--via WAY"), "help does not name the value:\n%s", stdout)
}

func TestSubcommands(t *testing.T) {
	root := &cobra.Command{Use: "prog", Short: "A program"}
	root.AddCommand(&cobra.Command{
		Use: "sub FILE", Short: "does it", Args: cli.OneArg("FILE"),
		RunE: func(*cobra.Command, []string) error { return errors.New("no") },
	})
	status, _, stderr := execute(root, nil, "sub", "x")
	testutil.Holds(t, status == 1 && stderr == "prog: no\n", "%d %q", status, stderr)
	want := "prog: want one argument, FILE, and got 0 (see prog sub --help)\n"
	status, _, stderr = execute(root, nil, "sub")
	testutil.Holds(t, status == 2 && stderr == want, "a missing argument: %d %q, want 2 %q", status, stderr, want)
	if status, _, stderr := execute(root, nil, "su"); status != 2 || strings.ContainsAny(strings.TrimSpace(stderr), "\n\t") {
		t.Errorf("a mistyped command: %d %q", status, stderr)
	}
	_, stdout, _ := execute(root, nil, "--help")
	testutil.Holds(t, strings.Contains(stdout, "sub          does it"), "help lacks the command:\n%s", stdout)
}

// An unknown topic is an error, also below a command and in a program without others.
func TestHelpTopics(t *testing.T) {
	tree := func() *cobra.Command {
		root, sub := &cobra.Command{Use: "prog", Short: "A program"}, &cobra.Command{Use: "sub", Short: "has one below"}
		leaf := program(nothing)
		leaf.Use = "leaf"
		sub.AddCommand(leaf)
		root.AddCommand(sub)
		return root
	}
	for _, c := range []struct {
		root   *cobra.Command
		args   string
		status int
		says   string // on standard error; "": help is on standard output
	}{
		{tree(), "help", 0, ""},
		{tree(), "help sub leaf", 0, ""},
		{tree(), "help suv", 2, "prog: unknown help topic \"suv\" for \"prog\": did you mean sub? (see prog --help)\n"},
		{tree(), "help sub laef", 2, "prog: unknown help topic \"laef\" for \"prog sub\": did you mean leaf? (see prog --help)\n"},
		{tree(), "help sub leaf FILE", 2, "prog: unknown help topic \"FILE\" for \"prog sub leaf\" (see prog --help)\n"},
		{tree(), "sub laef", 2, "prog: unknown command \"laef\" for \"prog sub\": did you mean leaf? (see prog sub --help)\n"},
		{program(nothing), "help version", 0, ""},
		{program(nothing), "help stray", 2, "prog: unknown help topic \"stray\" for \"prog\" (see prog --help)\n"},
	} {
		status, stdout, stderr := execute(c.root, nil, strings.Fields(c.args)...)
		testutil.Holds(t, status == c.status && stderr == c.says && (c.says == "") == strings.Contains(stdout, "Usage:"),
			"%s: %d %q, want %d %q; help:\n%s", c.args, status, stderr, c.status, c.says, stdout)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
