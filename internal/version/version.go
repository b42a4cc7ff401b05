// Package version identifies the running build of the suite.
package version

import (
	"cmp"
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the linker (see the Makefile). They are
// variables only because -X requires it; nothing writes them later.
var (
	version = ""
	commit  = ""
)

// Info describes a build.
type Info struct {
	Version string `json:"version"` // "v0.1.0"; "devel" for a plain go build
	Commit  string `json:"commit"`  // git commit; "unknown" if the build has none
	Go      string `json:"go"`      // Go release that built it
	OS      string `json:"os"`
	Arch    string `json:"arch"`

	// FIPS is the version of Go's FIPS 140-3 module, if the program is in that mode.
	FIPS string `json:"fips,omitempty"`
}

// Get returns the running build's Info. What the linker did not set comes from
// the build information that Go embeds, if any.
func Get() Info {
	i := Info{Version: version, Commit: commit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if fips140.Enabled() {
		i.FIPS = fips140.Version()
	}
	if i.Commit == "" {
		i.Commit = embeddedCommit()
	}
	i.Version = cmp.Or(i.Version, "devel")
	return i
}

// String returns one line, as --version prints it.
func (i Info) String() string {
	mode := ""
	if i.FIPS != "" {
		mode = ", FIPS 140-3 mode, module " + i.FIPS
	}
	return fmt.Sprintf("%s (commit %s, %s, %s/%s%s)", i.Version, i.Commit, i.Go, i.OS, i.Arch, mode)
}

// embeddedCommit returns the revision that go build recorded, or "unknown".
func embeddedCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "unknown"
}
