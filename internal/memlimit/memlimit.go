// Package memlimit has the Go runtime keep to the memory limit of the process's
// cgroup. Without it the garbage collector lets the heap double before it runs,
// however little room there is, and the kernel ends the process. The number of
// processors the runtime takes from the cgroup by itself.
package memlimit

import (
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// percent of the cgroup's limit is the runtime's. The rest is for what is
// charged to the cgroup as well but the runtime does not count: socket buffers,
// page tables, touched pages of the program file (which the kernel can drop).
const percent = 90

// noLimit is where a figure stops being a limit: cgroup v1 says "none" by the
// largest number of whole pages, and no machine has an exabyte.
const noLimit = 1 << 60

// Set makes 90 % of the cgroup's memory limit the runtime's soft limit, and
// returns it in bytes. It does nothing and returns 0 where there is no limit,
// or no cgroup, or the user set GOMEMLIMIT, which the runtime has heeded. root
// is the file system that /proc and /sys are in.
func Set(root fs.FS, getenv func(string) string) int64 {
	if getenv("GOMEMLIMIT") != "" {
		return 0
	}
	limit := Cgroup(root) / 100 * percent
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	return limit
}

// InForce is the soft limit that the runtime keeps to now, in bytes, whoever
// set it; 0 means none.
func InForce() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit
	}
	return 0
}

// Cgroup is the lowest limit, in bytes, of the cgroups that this process is in;
// 0 means none. A cgroup is bound by those above it as well, so all the way up
// is looked at. Those that a container cannot see are left out; its own is then
// what is mounted at the top.
func Cgroup(root fs.FS) int64 {
	memberships, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := int64(noLimit)
	for _, h := range parse(string(memberships)) {
		for _, mount := range h.mounts {
			least = min(least, h.least(root, mount))
		}
	}
	if least == noLimit {
		return 0
	}
	return least
}

// hierarchy is where the process stands in one of the trees of cgroups.
type hierarchy struct {
	mounts []string // where it is mounted by custom, relative to the root
	files  []string // that hold limits
	path   string   // of the process's cgroup, from "/"
}

// parse reads /proc/self/cgroup, whose lines are ID:CONTROLLERS:PATH, with no
// controllers for version 2 (cgroups(7)). What it cannot read it leaves out.
func parse(memberships string) []hierarchy {
	var all []hierarchy
	for line := range strings.Lines(memberships) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		h := hierarchy{path: path.Clean(fields[2])} // "/../x": seen from beside the namespace
		switch {
		case fields[0] == "0" && fields[1] == "":
			h.mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} // the latter where v1 is in use, too
			h.files = []string{"memory.max", "memory.high"}
		case hasField(fields[1], "memory"):
			h.mounts, h.files = []string{"sys/fs/cgroup/memory"}, []string{"memory.limit_in_bytes"}
		default:
			continue
		}
		all = append(all, h)
	}
	return all
}

func hasField(list, want string) bool {
	for field := range strings.SplitSeq(list, ",") {
		if field == want {
			return true
		}
	}
	return false
}

// least is the lowest limit from the process's cgroup up to the top.
func (h hierarchy) least(root fs.FS, mount string) int64 {
	least := int64(noLimit)
	for at := h.path; ; at = path.Dir(at) {
		for _, file := range h.files {
			if text, err := fs.ReadFile(root, path.Join(mount, at, file)); err == nil {
				least = min(least, limit(string(text)))
			}
		}
		if at == "/" {
			return least
		}
	}
}

// limit reads a file with a limit: a number of bytes, or "max". A limit of 0 is
// for tests of the kernel: nothing can run under it.
func limit(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n >= noLimit {
		return noLimit
	}
	return n
}
