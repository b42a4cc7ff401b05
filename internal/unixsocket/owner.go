package unixsocket

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// unchanged is an id that leaves the file's as it is (chown(2)).
const unchanged = -1

// Owner is the user and group of a socket file.
type Owner struct{ uid, gid int }

// ParseOwner reads USER, USER:GROUP or :GROUP, each a name or a number. What is
// not given stays this process's.
func ParseOwner(text string) (*Owner, error) {
	name, group, both := strings.Cut(text, ":")
	if name == "" && group == "" || both && group == "" {
		return nil, errors.New("want USER, USER:GROUP or :GROUP")
	}
	uid, err := idOf("user", name, user.Lookup, func(u *user.User) string { return u.Uid })
	if err != nil {
		return nil, err
	}
	gid, err := idOf("group", group, user.LookupGroup, func(g *user.Group) string { return g.Gid })
	if err != nil {
		return nil, err
	}
	return &Owner{uid: uid, gid: gid}, nil
}

// idOf is the number that text is or stands for.
func idOf[T any](kind, text string, lookup func(name string) (T, error), number func(T) string) (int, error) {
	if text == "" {
		return unchanged, nil
	}
	id, err := strconv.ParseUint(text, 10, 31)
	if err == nil {
		return int(id), nil
	}
	found, err := lookup(text)
	if err == nil {
		id, err = strconv.ParseUint(number(found), 10, 31)
	}
	if err != nil {
		return 0, fmt.Errorf("no %s %q is known here; give a number", kind, text)
	}
	return int(id), nil
}

// ParseMode reads permission bits in octal.
func ParseMode(text string) (os.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 32)
	if err != nil || bits == 0 || bits > uint64(os.ModePerm) {
		return 0, errors.New("want permissions in octal, from 0001 to 0777")
	}
	return os.FileMode(bits), nil
}

// chown sets the owner and group of the file at path.
func chown(path string, uid, gid int) error {
	if uid == unchanged && gid == unchanged {
		return nil
	}
	if err := os.Lchown(path, uid, gid); err != nil {
		return fmt.Errorf("%w: it takes root or CAP_CHOWN to give a socket to another user, or to a group that this process is not in", err)
	}
	return nil
}
