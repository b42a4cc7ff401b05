package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// Quickstart goes by every path once. An image may have no folder for temporary files.
func TestQuickstartOnce(t *testing.T) {
	cmd := exec.Command(binaries.Path("konnectivity"), "quickstart", "--once", "--json")
	cmd.Env, cmd.Dir = append(os.Environ(), "TMPDIR="+filepath.Join(t.TempDir(), "missing")), t.TempDir()
	out, err := cmd.Output()
	testutil.Requires(t, err == nil, "%v\n%s", err, out)
	var paths []struct {
		Path         string
		Milliseconds float64
		Error        string
	}
	if err := json.Unmarshal(out, &paths); err != nil || len(paths) < 7 {
		t.Fatalf("%v, %d paths in\n%s", err, len(paths), out)
	}
	for _, p := range paths {
		testutil.Holds(t, p.Error == "" && p.Milliseconds > 0, "%+v", p)
	}
}

var programs = []string{"konnectivity", "konnectivity-server", "konnectivity-agent", "konnectivity-socks5-proxy", "konnectivity-https-proxy"}

// The script for each shell loads there without a word, and completes.
func TestCompletionLoads(t *testing.T) {
	t.Parallel()
	for shell, c := range map[string]struct{ script, says string }{
		// What bash does when TAB is pressed behind "--lo".
		"bash": {`set -e
			. /usr/share/bash-completion/bash_completion
			source <("$1" completion bash)
			COMP_LINE="$2 --lo" COMP_POINT=${#COMP_LINE} COMP_WORDS=("$2" --lo) COMP_CWORD=1 COMP_TYPE=9 COMP_KEY=9
			"__start_$2" "$2" --lo "$2" && echo "completes ${COMPREPLY[*]}"`, "completes --lo"},
		"zsh": {`set -e
			autoload -U compinit && compinit -u -d "$HOME/zcompdump"
			source <("$1" completion zsh)
			whence -w "_$2"`, ": function"},
		"fish": {`set p $argv[1]; set n $argv[2]; $p completion fish | source; and set -x PATH (dirname $p) $PATH; complete -C "$n --lo"`, "--lo"},
	} {
		for _, program := range programs {
			t.Run(shell+" "+program, func(t *testing.T) {
				if program == "konnectivity" {
					c.script, c.says = strings.ReplaceAll(c.script, "--lo", "--ve"), strings.ReplaceAll(c.says, "--lo", "--ve")
				}
				path := binaries.Path(program)
				args := map[string][]string{
					"bash": {"--norc", "-c", c.script, "bash", path, program},
					"zsh":  {"-f", "-c", c.script, "zsh", path, program},
					"fish": {"--no-config", "-c", c.script, path, program},
				}[shell]
				env := []string{"PATH=" + string(binaries) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
				out, err := command(t, env, shell, args...)
				if err != nil || !strings.Contains(out, c.says) || strings.Contains(out, "`") || strings.Contains(out, "not found") || strings.Count(out, "\n") > 3 {
					t.Errorf("%v: %q, want %q", err, out, c.says)
				}
			})
		}
	}
}

// Help is for people: no markup, no line that a terminal would break, and each
// command with an example where an argument is not obvious.
func TestHelpReadsWell(t *testing.T) {
	for _, args := range [][]string{
		{"konnectivity"}, {"konnectivity", "check"}, {"konnectivity", "dial"}, {"konnectivity", "status"}, {"konnectivity", "certs"}, {"konnectivity", "bench"}, {"konnectivity", "quickstart"}, {"konnectivity", "version"},
		{"konnectivity", "completion"}, {"konnectivity-server"}, {"konnectivity-agent"}, {"konnectivity-socks5-proxy"}, {"konnectivity-https-proxy"},
	} {
		out, err := command(t, nil, binaries.Path(args[0]), append(args[1:], "--help")...)
		testutil.Holds(t, err == nil && !strings.Contains(out, "`") && strings.Contains(out, "Usage:"),
			"%q: %v\n%s", args, err, out)
		for line := range strings.Lines(out) {
			testutil.AtMost(t, len([]rune(line)), 140, "%q: characters of the line %s", args, line)
		}
	}
}
