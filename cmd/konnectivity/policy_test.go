package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// explain names the rule that decides, whether it allows or denies. An argument that is not
// HOST:PORT has an exit status of its own.
func TestExplainNamesTheRule(t *testing.T) {
	const deny = "version: 1\nmode: enforce\nrules:\n" +
		"- {name: databases, action: deny, who: ['*'], where: [10.9.0.0/16]}\n"
	const both = deny + "- {name: monitoring, action: allow, who: ['cn:p'], where: [10.0.0.0/8]}\n"
	for _, c := range []struct {
		file, to, want string
		status         int
	}{
		{both, "10.1.2.3:22", "allowed by rule \"monitoring\"\n", cli.ExitOK},
		{both, "10.9.2.3:22", "konnectivity: denied: by rule \"databases\" (10.9.0.0/16)\n", cli.ExitFailure},
		{both, "11.1.2.3:22", "konnectivity: denied: no allow rule matches\n", cli.ExitFailure},
		{deny, "11.1.2.3:22", "allowed: no rule denies it, and the file has no rule with action allow, so all else is allowed\n", cli.ExitOK},
		{deny, "11.1.2.3", "konnectivity: \"11.1.2.3\": bad address: want host:port (see konnectivity policy explain --help)\n", cli.ExitUsage},
	} {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		testutil.NoError(t, os.WriteFile(path, []byte(c.file), 0o600))
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		status := cli.Run(root, []string{"policy", "explain", "--as=cn:p", path, c.to}, &out, nil)
		testutil.Holds(t, status == c.status && out.String() == c.want,
			"%s: status %d, %q, want %d, %q", c.to, status, out.String(), c.status, c.want)
	}
}
