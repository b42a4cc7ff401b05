package resources

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"

	"konnectivity/internal/testutil"
)

// tree is a file system with the files named: path, text, path, text, ...
func tree(files ...string) fstest.MapFS {
	t := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		t[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return t
}

func TestCgroup(t *testing.T) {
	const self, v1None = "proc/self/cgroup", "9223372036854771712\n"
	v1 := "11:cpu,cpuacct:/pod/a\n4:memory:/pod/a\n1:name=systemd:/pod/a\n"
	for name, c := range map[string]struct {
		root fs.FS
		want int64
	}{
		"not Linux":                  {tree(), 0},
		"v2, no limit":               {tree(self, "0::/\n", "sys/fs/cgroup/memory.max", "max\n"), 0},
		"v2, no files, as at a root": {tree(self, "0::/\n"), 0},
		"v2, a container's own namespace": {
			tree(self, "0::/\n", "sys/fs/cgroup/memory.max", "134217728\n", "sys/fs/cgroup/memory.high", "max\n"), 128 << 20},
		"v2, throttled before the limit": {
			tree(self, "0::/\n", "sys/fs/cgroup/memory.max", "134217728\n", "sys/fs/cgroup/memory.high", "67108864\n"), 64 << 20},
		"v2, a systemd service": {
			tree(self, "0::/system.slice/a.service\n", "sys/fs/cgroup/system.slice/a.service/memory.max", "1073741824\n",
				"sys/fs/cgroup/system.slice/memory.max", "max\n"), 1 << 30},
		"v2, bound by the one above": {
			tree(self, "0::/slice/a\n", "sys/fs/cgroup/slice/a/memory.max", "1073741824\n", "sys/fs/cgroup/slice/memory.max", "4096\n"), 4096},
		"v2, the host's path seen from a container": {
			tree(self, "0::/kubepods/pod1/c1\n", "sys/fs/cgroup/memory.max", "134217728\n"), 128 << 20},
		"v2, seen from beside its namespace": {
			tree(self, "0::/../other\n", "sys/fs/cgroup/memory.max", "134217728\n"), 128 << 20},
		"v1": {tree(self, v1, "sys/fs/cgroup/memory/pod/a/memory.limit_in_bytes", "268435456\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", v1None), 256 << 20},
		"v1, no limit": {tree(self, v1, "sys/fs/cgroup/memory/memory.limit_in_bytes", v1None), 0},
		"v1, the host's path seen from a container": {
			tree(self, v1, "sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"), 256 << 20},
		"both, the limit in v1": {tree(self, v1+"0::/\n", "sys/fs/cgroup/memory/pod/a/memory.limit_in_bytes", "268435456\n",
			"sys/fs/cgroup/unified/cgroup.procs", "1\n"), 256 << 20},
		"both, the limit in v2": {tree(self, "1:cpu:/\n0::/a\n", "sys/fs/cgroup/unified/a/memory.max", "268435456\n"), 256 << 20},
		"memory is not memory2": {tree(self, "4:memory2:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "1\n"), 0},
		"nonsense":              {tree(self, "0::\n::::\nx\n\n0::relative\n", "sys/fs/cgroup/memory.max", "1\n"), 0},
		"a limit that is none":  {tree(self, "0::/\n", "sys/fs/cgroup/memory.max", "-1\n", "sys/fs/cgroup/memory.high", "12 MB\n"), 0},
	} {
		testutil.Equal(t, cgroup(c.root), c.want, "%s", name)
	}
}

func TestSetMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	root := tree("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "1073741800\n")
	env := map[string]string{"GOMEMLIMIT": "off"}
	getenv := func(name string) string { return env[name] }

	got := SetMemoryLimit(root, getenv)
	testutil.Holds(t, got == 0 && MemoryLimit() == 0, "set %d, in force %d, although the user chose", got, MemoryLimit())
	env = nil
	got = SetMemoryLimit(tree(), getenv)
	testutil.Holds(t, got == 0 && MemoryLimit() == 0, "set %d, in force %d, without a cgroup", got, MemoryLimit())
	const want = 10737418 * 90
	got = SetMemoryLimit(root, getenv)
	testutil.Holds(t, got == want && MemoryLimit() == want, "set %d, in force %d, want %d", got, MemoryLimit(), want)
}

// This machine's own files are read, whatever they say.
func TestCgroupHere(t *testing.T) {
	got := cgroup(os.DirFS("/"))
	testutil.Holds(t, got >= 0 && got < noLimit, "%v", got)
}

func FuzzCgroup(f *testing.F) {
	for _, text := range []string{
		"0::/\n", "0::/a/b\n", "4:memory:/pod\n0::/\n", "9:cpu,memory,pids:/x\n", "0::/../x\n", "0::a\n", ":::\n", "0::/a:b\n",
	} {
		f.Add(text, "max\n")
		f.Add(text, "134217728\n")
		f.Add(text, "9223372036854771712\n")
	}
	f.Fuzz(func(t *testing.T, memberships, max string) {
		for _, h := range parseMemberships(memberships) {
			testutil.Holds(t, strings.HasPrefix(h.path, "/") && path.Clean(h.path) == h.path && len(h.mounts) != 0 &&
				len(h.files) != 0, "%+v", h)
		}
		root := tree("proc/self/cgroup", memberships, "sys/fs/cgroup/memory.max", max, "sys/fs/cgroup/memory/memory.limit_in_bytes", max)
		got := cgroup(root)
		testutil.Holds(t, got >= 0 && got < noLimit, "a limit of %d", got)
		testutil.Holds(t, got <= 0 || strings.Contains(max, fmt.Sprint(got)), "a limit of %d from %q", got, max)
	})
}
