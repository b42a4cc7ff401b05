package resources

import (
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// limitPercent is the runtime's part of the cgroup's limit. The rest is for
// memory that counts against the cgroup but not for the runtime: socket buffers,
// page tables, touched pages of the program file (which the kernel can drop).
const limitPercent = 90

// noLimit is the smallest figure that means no limit. Cgroup v1 says "none" by the
// largest number of whole pages, and no machine has an exabyte.
const noLimit = 1 << 60

// SetMemoryLimit makes 90 % of the cgroup's memory limit the runtime's soft limit,
// and returns it in bytes. Otherwise the garbage collector lets the heap double
// before it runs, however little room there is, and the kernel kills the process.
// (The runtime itself takes the number of processors from the cgroup.)
//
// It does nothing and returns 0 where there is no limit, or no cgroup, or the user
// set GOMEMLIMIT, which the runtime obeys by itself. root is the file system that
// has /proc and /sys.
func SetMemoryLimit(root fs.FS, getenv func(string) string) int64 {
	if getenv("GOMEMLIMIT") != "" {
		return 0
	}
	limit := cgroup(root) / 100 * limitPercent
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	return limit
}

// MemoryLimit returns the runtime's present soft limit in bytes, whether
// SetMemoryLimit or the user set it; 0 means none.
func MemoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit
	}
	return 0
}

// cgroup returns the lowest limit, in bytes, of the cgroups that this process is
// in; 0 means none. The limits of the cgroups above apply as well, so all of them
// are read, except those that a container cannot see: its own cgroup is then
// mounted at the top.
func cgroup(root fs.FS) int64 {
	memberships, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := int64(noLimit)
	for _, h := range parseMemberships(string(memberships)) {
		for _, mount := range h.mounts {
			least = min(least, h.least(root, mount))
		}
	}
	if least == noLimit {
		return 0
	}
	return least
}

// hierarchy is the process's place in one of the trees of cgroups.
type hierarchy struct {
	mounts []string // where it is usually mounted, relative to the root
	files  []string // that hold limits
	path   string   // of the process's cgroup, from "/"
}

// parseMemberships reads /proc/self/cgroup, whose lines are ID:CONTROLLERS:PATH,
// with no controllers for version 2 (cgroups(7)). It skips lines that it cannot
// parse.
func parseMemberships(memberships string) []hierarchy {
	var all []hierarchy
	for line := range strings.Lines(memberships) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		h := hierarchy{path: path.Clean(fields[2])} // "/../x": outside of the namespace
		switch {
		case fields[0] == "0" && fields[1] == "":
			h.mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} // the latter if v1 is in use, too
			h.files = []string{"memory.max", "memory.high"}
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			h.mounts, h.files = []string{"sys/fs/cgroup/memory"}, []string{"memory.limit_in_bytes"}
		default:
			continue
		}
		all = append(all, h)
	}
	return all
}

// least returns the lowest limit from the process's cgroup up to the top.
func (h hierarchy) least(root fs.FS, mount string) int64 {
	least := int64(noLimit)
	for at := h.path; ; at = path.Dir(at) {
		for _, file := range h.files {
			if text, err := fs.ReadFile(root, path.Join(mount, at, file)); err == nil {
				least = min(least, parseLimit(string(text)))
			}
		}
		if at == "/" {
			return least
		}
	}
}

// parseLimit reads the content of a file with a limit: a number of bytes, or
// "max". A limit of 0 is ignored: nothing can run under it.
func parseLimit(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n >= noLimit {
		return noLimit
	}
	return n
}
